"""benchdnn's options that change a graph: ``--in-shapes``, ``--dt``, ``--op-attrs``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..graph import Graph, GraphOp, LogicalTensor
from ..graph._parts import Attribute
from ..tensors.dtypes import DTYPES

Tensors = tuple[LogicalTensor, ...]


def in_shapes(graph: Graph, text: str) -> Graph:
    """Change inputs: ``ID:SHAPE``, ``ID:TAG`` or ``ID:SHAPE*TAG``, with plus signs between.

    A tag names the axes, a the first, from the slowest in memory to the fastest. Without one, the
    order in memory stays, where the rank does. The outputs' shapes are left to be inferred.
    """
    made = {tensor.id for op in graph.ops for tensor in op.outputs}
    wanted = dict(_by_id("--in-shapes", text))
    known = {tensor.id for op in graph.ops for tensor in op.inputs} - made
    for number in wanted:
        if number not in known:
            raise ValueError(f"--in-shapes: no input of the graph has the id {number}")

    def change(tensor: LogicalTensor) -> LogicalTensor:
        if tensor.id not in wanted:
            return tensor
        return _reshaped(tensor, wanted[tensor.id])

    return _with_ops(
        graph,
        lambda op: replace(
            op,
            inputs=tuple(map(change, op.inputs)),
            outputs=tuple(replace(tensor, shape=None, strides=None) for tensor in op.outputs),
        ),
    )


def dt(graph: Graph, text: str) -> Graph:
    """Change types: one for src and its like, or ``ID:DT`` with plus signs between.

    As benchdnn has it, the first form leaves the statistics as they are.
    """
    if text == "undef":
        return graph
    if ":" not in text:
        chosen = _dtype(text)

        def change_tensors(op: GraphOp) -> GraphOp:
            return replace(
                op,
                inputs=_retyped(op.inputs, 2, chosen),
                outputs=_retyped(op.outputs, 1, chosen),
            )

        return _with_ops(graph, change_tensors)

    wanted = {number: _dtype(word) for number, word in _by_id("--dt", text)}
    known = {tensor.id for op in graph.ops for tensor in (*op.inputs, *op.outputs)}
    for number in wanted:
        if number not in known:
            raise ValueError(f"--dt: no tensor of the graph has the id {number}")

    def change(tensors: Tensors) -> Tensors:
        return tuple(replace(t, dtype=wanted.get(t.id, t.dtype)) for t in tensors)

    return _with_ops(
        graph, lambda op: replace(op, inputs=change(op.inputs), outputs=change(op.outputs))
    )


def op_attrs(graph: Graph, text: str) -> Graph:
    """Change attributes that there are: ``ID:NAME:VALUE*NAME:VALUE``, with plus signs between."""
    wanted = dict(_by_id("--op-attrs", text))
    for number in wanted:
        if number not in {op.id for op in graph.ops}:
            raise ValueError(f"--op-attrs: no op of the graph has the id {number}")

    def change(op: GraphOp) -> GraphOp:
        if op.id not in wanted:
            return op
        attrs = dict(op.attrs)
        for pair in wanted[op.id].split("*"):
            name, colon, value = pair.partition(":")
            if not colon:
                raise ValueError(f"--op-attrs: {pair!r} must be NAME:VALUE")
            if name not in attrs:
                raise ValueError(
                    f"--op-attrs: the op {op.id} has no attribute {name!r}; it has "
                    f"{', '.join(attrs) or 'none'}"
                )
            attrs[name] = _parsed(name, value, attrs[name])
        outputs = tuple(replace(tensor, shape=None, strides=None) for tensor in op.outputs)
        return replace(op, attrs=attrs, outputs=outputs)

    return _with_ops(graph, change)


def _with_ops(graph: Graph, change: Callable[[GraphOp], GraphOp]) -> Graph:
    return replace(graph, ops=tuple(map(change, graph.ops)))


def _by_id(option: str, text: str) -> Iterator[tuple[int, str]]:
    for part in text.split("+"):
        number, colon, rest = part.partition(":")
        if not colon or not number.isdecimal() or not rest:
            raise ValueError(f"{option}: {part!r} must begin with a tensor's or op's id, as 0:...")
        yield int(number), rest


def _dtype(word: str) -> str:
    if word not in DTYPES:
        raise ValueError(f"--dt: no type {word!r}; there are {', '.join(DTYPES)}")
    return word


def _retyped(tensors: Tensors, count: int, dtype: str) -> Tensors:
    return tuple(replace(t, dtype=dtype) if i < count else t for i, t in enumerate(tensors))


def _parsed(name: str, value: str, like: Attribute) -> Attribute:
    try:
        if isinstance(like, bool):
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if isinstance(like, tuple):
            return tuple(int(item) for item in value.split("x"))
        return type(like)(value)
    except (KeyError, ValueError):
        kind = type(like).__name__
        raise ValueError(f"--op-attrs: {name} is a {kind}, and {value!r} is none") from None


def _reshaped(tensor: LogicalTensor, text: str) -> LogicalTensor:
    first, star, second = text.partition("*")
    sizes, tag = (first, second) if star else ("", first) if first.isalpha() else (first, "")
    if star and not (sizes and tag):
        raise ValueError(f"--in-shapes: {text!r} must be a shape, a tag, or SHAPE*TAG")
    shape = tensor.shape
    if sizes == "-":
        shape = ()
    elif sizes:
        if not all(size.isdecimal() for size in sizes.split("x")):
            raise ValueError(f"--in-shapes: {sizes!r} must be sizes with an x between")
        shape = tuple(map(int, sizes.split("x")))
    if shape is None:
        raise ValueError(f"--in-shapes: the shape of {tensor.id} is not known; give it")
    if tag:
        order = axes_of(tag, len(shape))
    elif tensor.strides is not None and len(tensor.strides) == len(shape):
        steps = tensor.strides
        order = sorted(range(len(shape)), key=lambda axis: -steps[axis])
    else:
        order = list(range(len(shape)))
    return replace(tensor, shape=shape, strides=dense_strides(shape, order))


def axes_of(tag: str, rank: int) -> list[int]:
    """Read a tag: the axes from the slowest in memory to the fastest.

    Raises
    ------
    ValueError
        If it does not name each axis once.
    """
    order = [ord(letter) - ord("a") for letter in tag]
    if sorted(order) != list(range(rank)):
        letters = "".join(chr(ord("a") + axis) for axis in range(min(rank, 26)))
        raise ValueError(f"the tag {tag!r} must have each of {letters!r} once")
    return order


def dense_strides(shape: tuple[int, ...], order: list[int]) -> tuple[int, ...]:
    """Give the strides in elements of a tensor without gaps, its axes in such an order."""
    strides = [1] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)
