"""Validation of graphs. oneDNN reads memory out of bounds for shapes that do not fit together."""

from __future__ import annotations

import numbers
from collections.abc import Container, Iterator, Sequence

from .. import _core
from ..runtime.text import printable
from ..tensors.dtypes import DTYPE_NAMES, DTYPES, MAX_RANK
from ..tensors.ports import Port
from ._parts import GRADIENT, KINDS, GraphOp, LogicalTensor, Requirement, ports_of

DUMP_ATTRIBUTES = ("backend", "partition_id")
"""Attributes that oneDNN adds to the dump of a partitioned graph."""

_, _FLOAT_LIMIT = _core.EPSILON_LIMITS  # numbers from here on are infinite in float32


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return abs(float(value)) < _FLOAT_LIMIT
    except OverflowError:  # a large int
        return False


_NUMBER = _is_number, "a number in the range of float32"
_ATTRIBUTES: dict[str, Requirement] = {
    **dict.fromkeys(("alpha", "epsilon", "momentum", "min", "max"), _NUMBER),
    "data_format": (lambda value: isinstance(value, str), "NXC or NCX"),
    "use_dst": (lambda value: isinstance(value, bool), "true or false"),
}

_PROPERTIES = ("undef", "constant", "variable")
_MAX_INT = 2**63 - 1


def check_graph(ops: Sequence[GraphOp]) -> None:
    """Raise ValueError unless oneDNN can divide a graph into partitions without invalid reads.

    Whether it has kernels for the types is left to oneDNN and to the operators, and whether it can
    have so many dimensions to the core, because `repaired` reshapes.
    """
    for problem in _problems(ops):
        raise ValueError(printable(problem))  # with text of a file or a user


# The generators below run until the first problem only, so each line relies on those before it.


def _problems(ops: Sequence[GraphOp]) -> Iterator[str]:
    if not ops:
        yield "graph must have at least one op, got 0"
    if len({op.id for op in ops}) != len(ops):
        yield f"ops must have different ids, got {[op.id for op in ops]}"
    known: dict[int, LogicalTensor] = {}
    later = [tensor.id for op in ops for tensor in op.outputs]
    ids_of_inputs = {tensor.id for op in ops for tensor in op.inputs}
    for index, op in enumerate(ops):
        place = f"graph[{index}]"
        yield from _op_problems(place, op, ids_of_inputs.union(later))
        for side, i, port, tensor in ports_of(op):
            must = f"{place}.{side}puts[{i}] ({port.name}) must"
            for problem in _tensor_problems(op, port, tensor):
                yield f"{must} {problem}"
            if known.setdefault(tensor.id, tensor) != tensor:
                yield f"{must} be the same tensor wherever its id is {tensor.id}, got {tensor}"
            if side == "in" and tensor.id in later:
                yield f"{must} not be an output of this op or a later one, got {tensor.id}"
        ids = [tensor.id for tensor in op.outputs]
        if any(later.count(i) > 1 for i in ids):
            yield f"{place}.outputs must have different ids, got {ids}"
        for i in ids:
            later.remove(i)


def _op_problems(place: str, op: GraphOp, used: Container[int]) -> Iterator[str]:
    if op.kind not in KINDS:
        yield f'{place}.kind must be one of {", ".join(KINDS)}, got "{op.kind}"'
    signature, attributes = KINDS[op.kind]
    for side, ports in (("inputs", signature.inputs), ("outputs", signature.outputs)):
        got, least = len(getattr(op, side)), sum(not port.optional for port in ports)
        if not least <= got <= len(ports):
            counts = f"{least}" if least == len(ports) else f"{least} to {len(ports)}"
            names = ", ".join(port.name for port in ports)
            yield f"{place}.{side} must be {counts} tensors ({names}), got {got}"
    if not 0 <= op.id <= _MAX_INT:
        yield f"{place}.id must be between 0 and 2^63 - 1, got {op.id}"
    ids = [tensor.id for tensor in op.inputs]
    # Inputs have no names, so that a file without variance would look like one without gamma.
    skips_one = [i - ids[0] for i in ids] == [0, 1, 2, 4] and ids[0] + 3 not in used
    if op.kind == GRADIENT and skips_one:
        yield (
            f"{place}.inputs[3] (variance) is missing: the ids {ids} skip {ids[0] + 3}. "
            "Number the tensors consecutively if it is gamma that is absent"
        )
    for name, value in op.attrs.items():
        if name in DUMP_ATTRIBUTES:
            continue
        if name not in attributes:
            yield f"{place}.attrs.{name} is not an attribute of {op.kind}"
        is_valid, requirement = _ATTRIBUTES[name]
        if not is_valid(value):
            yield f"{place}.attrs.{name} must be {requirement}, got {value!r}"
    if "epsilon" in attributes and "epsilon" not in op.attrs:
        yield f"{place}.attrs.epsilon is missing"
    try:
        op.data_format  # noqa: B018 - it raises
    except ValueError as error:
        yield f"{place}.attrs: {error}"


def _tensor_problems(op: GraphOp, port: Port, tensor: LogicalTensor) -> Iterator[str]:
    if not 0 <= tensor.id <= _MAX_INT:
        yield f"have an id between 0 and 2^63 - 1, got {tensor.id}"
    if tensor.dtype not in DTYPES:
        yield f'have dtype {DTYPE_NAMES}, got "{tensor.dtype}"'
    if tensor.layout_type != "strided":
        yield f'be strided, got "{tensor.layout_type}"'
    if tensor.property_type not in _PROPERTIES:
        yield f'have property_type {" or ".join(_PROPERTIES)}, got "{tensor.property_type}"'
    shape, strides, src = tensor.shape, tensor.strides, op.inputs[0].shape
    if shape is None or strides is None or src is None:
        yield f"have a known shape and stride, got {tensor}"
        return
    if any(abs(number) > _MAX_INT for number in (*shape, *strides)):
        yield f"have 64-bit sizes and strides, got {tensor}"
    if not 2 <= len(src) <= MAX_RANK:
        yield f"have 2 to {MAX_RANK} dimensions, got {src}"
    if any(size < 0 for size in src):
        yield f"have sizes of 0 or more, got {src}"
    if port.kind == "tensor" and shape != src:
        first = KINDS[op.kind].ports.inputs[0].name
        yield f"have shape {src}, like {first}, got {shape}"
    channels = op.data_format.channels_of(src)
    if port.kind == "channel vector" and shape != channels:
        yield f"have shape {channels}, one value per channel of src, got {shape}"
    if len(strides) != len(shape):
        yield f"have a stride of {len(shape)} integers, as its shape, got {strides}"
    smallest = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride < smallest:
                yield f"have a stride (in elements) without overlapping elements, got {strides}"
            smallest = 1 if 0 in shape else stride * size
