"""Options of ``onedsl run`` that change a graph: ``--in-shapes``, ``--dt`` and ``--op-attrs``.

The syntax is that of oneDNN's benchdnn. Each function returns a changed copy of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..graph import Graph, GraphOp, LogicalTensor
from ..graph._parts import Attribute
from ..tensors.dtypes import DTYPES

Tensors = tuple[LogicalTensor, ...]


def in_shapes(graph: Graph, text: str) -> Graph:
    """Change the shapes and strides of inputs.

    `text` consists of ``ID:SHAPE``, ``ID:TAG`` or ``ID:SHAPE*TAG``, joined by ``+``. A tag lists
    the axes from the slowest in memory to the fastest; ``a`` is the first axis. An input without a
    tag keeps the order of its axes in memory if its rank does not change, and is in C order
    otherwise. The shapes of the outputs become unknown, because they follow from the inputs.
    """
    changes = dict(_by_id("--in-shapes", text))
    computed = {tensor.id for op in graph.ops for tensor in op.outputs}
    inputs = {tensor.id for op in graph.ops for tensor in op.inputs} - computed
    for number in changes:
        if number not in inputs:
            raise ValueError(f"--in-shapes: ID must be the id of an input, got {number}")

    def change(tensor: LogicalTensor) -> LogicalTensor:
        if tensor.id not in changes:
            return tensor
        return _reshaped(tensor, changes[tensor.id])

    return _with_ops(
        graph,
        lambda op: replace(
            op,
            inputs=tuple(map(change, op.inputs)),
            outputs=tuple(replace(tensor, shape=None, strides=None) for tensor in op.outputs),
        ),
    )


def dt(graph: Graph, text: str) -> Graph:
    """Change the dtypes of tensors.

    `text` is ``DT``, which sets the dtype of src, diff_dst and diff_src, or consists of ``ID:DT``
    joined by ``+``. As in benchdnn, ``DT`` alone does not change the statistics, and ``undef``
    changes nothing.
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

    changes = {number: _dtype(word) for number, word in _by_id("--dt", text)}
    known = {tensor.id for op in graph.ops for tensor in (*op.inputs, *op.outputs)}
    for number in changes:
        if number not in known:
            raise ValueError(f"--dt: ID must be the id of a tensor, got {number}")

    def change(tensors: Tensors) -> Tensors:
        return tuple(replace(t, dtype=changes.get(t.id, t.dtype)) for t in tensors)

    return _with_ops(
        graph, lambda op: replace(op, inputs=change(op.inputs), outputs=change(op.outputs))
    )


def op_attrs(graph: Graph, text: str) -> Graph:
    """Change existing attributes of ops.

    `text` consists of ``ID:NAME:VALUE*NAME:VALUE``, joined by ``+``. The shapes of the op's outputs
    become unknown, because they may depend on the attributes.
    """
    changes = dict(_by_id("--op-attrs", text))
    for number in changes:
        if number not in {op.id for op in graph.ops}:
            raise ValueError(f"--op-attrs: ID must be the id of an op, got {number}")

    def change(op: GraphOp) -> GraphOp:
        if op.id not in changes:
            return op
        attrs = dict(op.attrs)
        for pair in changes[op.id].split("*"):
            name, colon, value = pair.partition(":")
            if not colon:
                raise ValueError(f"--op-attrs: must be NAME:VALUE, got {pair!r}")
            if name not in attrs:
                known = ", ".join(attrs) or "none"
                raise ValueError(
                    f"--op-attrs: NAME must be an attribute of op {op.id} ({known}), got {name!r}"
                )
            attrs[name] = _parsed(name, value, attrs[name])
        outputs = tuple(replace(tensor, shape=None, strides=None) for tensor in op.outputs)
        return replace(op, attrs=attrs, outputs=outputs)

    return _with_ops(graph, change)


def _with_ops(graph: Graph, change: Callable[[GraphOp], GraphOp]) -> Graph:
    return replace(graph, ops=tuple(map(change, graph.ops)))


def _by_id(option: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (id, rest) for each part ``ID:REST`` of a text that joins its parts by ``+``."""
    for part in text.split("+"):
        number, colon, rest = part.partition(":")
        if not colon or not number.isdecimal() or not rest:
            raise ValueError(f"{option}: must begin with an id such as 0:, got {part!r}")
        yield int(number), rest


def _dtype(word: str) -> str:
    if word not in DTYPES:
        raise ValueError(f"--dt: DT must be one of {', '.join(DTYPES)}, got {word!r}")
    return word


def _retyped(tensors: Tensors, count: int, dtype: str) -> Tensors:
    """Return the tensors with the first `count` of them changed to the dtype."""
    return tuple(replace(t, dtype=dtype) if i < count else t for i, t in enumerate(tensors))


def _parsed(name: str, value: str, old: Attribute) -> Attribute:
    """Parse the new value of an attribute, which has the type of the old value."""
    try:
        if isinstance(old, bool):
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if isinstance(old, tuple):
            return tuple(int(item) for item in value.split("x"))
        return type(old)(value)
    except (KeyError, ValueError):
        kind = type(old).__name__
        raise ValueError(f"--op-attrs: {name} must be a {kind}, got {value!r}") from None


def _reshaped(tensor: LogicalTensor, text: str) -> LogicalTensor:
    """Return the tensor with the shape and strides of ``SHAPE``, ``TAG`` or ``SHAPE*TAG``."""
    first, star, second = text.partition("*")
    sizes, tag = (first, second) if star else ("", first) if first.isalpha() else (first, "")
    if star and not (sizes and tag):
        raise ValueError(f"--in-shapes: must be SHAPE, TAG or SHAPE*TAG, got {text!r}")
    shape = tensor.shape
    if sizes == "-":
        shape = ()
    elif sizes:
        if not all(size.isdecimal() for size in sizes.split("x")):
            raise ValueError(f"--in-shapes: SHAPE must be sizes such as 2x3x4, got {sizes!r}")
        shape = tuple(map(int, sizes.split("x")))
    if shape is None:
        raise ValueError(
            f"--in-shapes: must contain a SHAPE, because the shape of tensor {tensor.id} is unknown"
        )
    if tag:
        order = axes_of(tag, len(shape))
    elif tensor.strides is not None and len(tensor.strides) == len(shape):
        strides = tensor.strides
        order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    else:
        order = list(range(len(shape)))
    return replace(tensor, shape=shape, strides=dense_strides(shape, order))


def axes_of(tag: str, rank: int) -> list[int]:
    """Return the axes that a tag lists, from the slowest in memory to the fastest.

    Raises
    ------
    ValueError
        If the tag does not contain each axis once.
    """
    order = [ord(letter) - ord("a") for letter in tag]
    if sorted(order) != list(range(rank)):
        letters = "".join(chr(ord("a") + axis) for axis in range(min(rank, 26)))
        raise ValueError(f"the tag must contain each of {letters!r} once, got {tag!r}")
    return order


def dense_strides(shape: tuple[int, ...], order: list[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a dense tensor.

    `order` lists the axes from the slowest in memory to the fastest.
    """
    strides = [1] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)
