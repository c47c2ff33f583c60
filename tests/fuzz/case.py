"""One call, drawn at random: right, or spoiled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import helpers
import numpy as np

import onedsl
from fuzz import arrays
from fuzz.arrays import Rng, chance, choose
from fuzz.targets import TARGETS, Target

NO_NUMBERS: list[Any] = [0, -1.0, float("nan"), float("inf"), 1e-50, 1e39, 10**400, True, None, "1",
                         [1e-5], np.array([1e-5]), 1e-5 + 0j, object()]  # fmt: skip


@dataclass
class Case:
    """A call that is right, unless `spoiled` says otherwise."""

    target: Target
    attributes: dict[str, Any]
    inputs: list[Any]
    options: dict[str, Any]
    """How outputs are asked for, and by which backend."""
    way: str
    """Direct, compiled, or in passes."""
    spoiled: list[str] = field(default_factory=list)
    """What may make it wrong. Then it must be refused in words, or give the right result."""
    out: Any = None
    walls: Any = None
    in_place: bool = False
    spec: Any = None

    def __str__(self) -> str:
        kinds = ", ".join(_describe(value) for value in self.inputs)
        return (
            f"{self.target.kind.__name__}({self.attributes}) on {kinds}; "
            f"{self.options}, {self.way}, "
            f"out={'in place' if self.in_place else type(self.out).__name__}, "
            f"spoiled: {', '.join(self.spoiled) or 'nothing'}"
        )

    @property
    def channel_axis(self) -> int:
        """The axis that the statistics keep, where they are a vector."""
        return 1 if self.attributes.get("data_format") == "NCX" else -1

    @property
    def backend(self) -> Any:
        """The option."""
        return self.options["backend"]

    @property
    def wanted(self) -> list[str]:
        """Names of the outputs that are asked for."""
        names = [port.name for port in self.target.schema.outputs]
        if self.target.asks:
            option, every, _ = self.target.asks
            if self.options[option] != every:
                return [name for name in names if name in self.target.schema.always]
        return names


def _describe(value: Any) -> str:
    try:
        array = arrays.numpy_of(value)
        return f"{type(value).__name__} {array.dtype} {array.shape} by {array.strides}"
    except Exception:
        return repr(value)[:60]


# ---- Drawing ----


def draw(rng: Rng) -> Case:
    """Draw a right call, and spoil some."""
    target = choose(rng, TARGETS)
    dtype = choose(rng, target.schema.types)
    stats = choose(rng, target.schema.types[dtype])
    attributes = {name: choose(rng, good) for name, good in target.attributes.items()}
    attributes["epsilon"] = float(choose(rng, [1e-5, 1e-3, 1e-2, 1, 0.1, 1e-8]))
    if not target.broadcast:
        attributes["data_format"] = choose(rng, ["NXC", "NCX"])
    options = {"backend": choose(rng, ["auto", "native", "native", "onednn"])}
    if target.asks:
        option, every, some = target.asks
        options[option] = choose(rng, [every, every, some])
    inputs = _tensors(rng, target, dtype)
    ways = ["direct", "compiled", *(["in passes"] if target.summed else ["direct"])]
    case = Case(target, attributes, inputs, options, way=choose(rng, ways))
    _fit_statistics(rng, case, stats)
    _leave_out(rng, case)
    _place(rng, case)
    _give_out(rng, case)
    if chance(rng, 2):
        _spoil(rng, case)
    return case


def _tensors(rng: Rng, target: Target, dtype: str) -> list[Any]:
    shape = arrays.shape(rng, *target.schema.ranks)
    values = list(arrays.values(rng, shape))
    tensors = [
        values.pop(0) if values else np.maximum(0, rng.standard_normal(shape)) * 4
        for port in target.schema.inputs
        if port.kind == "tensor"
    ]
    return [
        tensors.pop(0).astype(helpers.NUMPY[dtype]) if port.kind == "tensor" else None
        for port in target.schema.inputs
    ]


def _leave_out(rng: Rng, case: Case) -> None:
    """Leave optional inputs out, as go together."""
    without = {
        choose(rng, ["gamma", "none"]),
        choose(rng, ["dst", "none"]),
        choose(rng, ["residual", "none"]),
    }
    if case.options.get("residual"):
        without.discard("dst")
    if "gamma" in without:
        without.add("beta")
    for i, port in enumerate(case.target.schema.inputs):
        if port.optional and port.name in without:
            case.inputs[i] = None


def _fit_statistics(rng: Rng, case: Case, stats: str) -> None:
    """Make the statistics: src's own, or any."""
    src = case.inputs[0].astype(np.float64)
    if case.target.broadcast:
        keep = tuple(axis for axis in range(src.ndim) if chance(rng, 2))
    else:
        keep = (case.channel_axis % src.ndim,)
    summed = tuple(axis for axis in range(src.ndim) if axis not in keep)
    wanted = [src.shape[a] if a in keep else 1 for a in range(src.ndim)]
    shape = wanted if case.target.broadcast else [src.shape[a] for a in keep]
    own = src.size > 0 and chance(rng, 2)
    for i, port in enumerate(case.target.schema.inputs):
        if port.kind != "statistic":
            continue
        value = rng.uniform(0.5, 2, wanted) * (
            -1 if chance(rng, 4) and "var" not in port.name else 1
        )
        if own and port.name == "mean":
            value = src.mean(summed, keepdims=True)
        if own and port.name == "variance":
            value = src.var(summed, keepdims=True)
        case.inputs[i] = value.reshape(shape).astype(helpers.NUMPY[stats])


def _place(rng: Rng, case: Case) -> None:
    """Move the arrays to places in memory, the tensors mostly to like ones; make some foreign."""
    tensors = [i for i, port in enumerate(case.target.schema.inputs) if port.kind == "tensor"]
    model = choose(rng, [lambda a: a, lambda a: arrays.dense_like(rng, a)])(case.inputs[0])
    if case.way != "compiled" and chance(rng, 5):
        model = arrays.placed(rng, model)
    for i, value in enumerate(case.inputs):
        if value is None:
            continue
        if i in tensors:
            placed = model if i == tensors[0] else arrays.like(value, model)
            if chance(rng, 3):
                placed = arrays.shifted(rng, placed)
            if case.way != "compiled" and chance(rng, 8):
                placed = arrays.placed(rng, value)
        else:
            placed = arrays.placed(rng, value) if chance(rng, 3) else value
        case.inputs[i] = placed
    try:
        case.spec = onedsl.TensorSpec.of(case.inputs[0])
    except ValueError:
        case.way = "direct"
    case.inputs = [
        choose(rng, arrays.KINDS)(value) if value is not None and chance(rng, 12) else value
        for value in case.inputs
    ]


def _give_out(rng: Rng, case: Case) -> None:
    """Give memory to write to, guarded and poisoned; or in place; or none."""
    if chance(rng, 2):
        return
    schema = case.target.schema
    src = next(arrays.numpy_of(v) for v in case.inputs if v is not None)
    if not is_dense(src):
        return
    ports = zip(schema.inputs, case.inputs, strict=True)
    statistic = next(arrays.numpy_of(v) for p, v in ports if p.kind == "statistic")
    models = {"tensor": src, "statistic": np.empty(statistic.shape, statistic.dtype)}
    case.walls = helpers.Guarded(
        *(models[port.kind] for port in schema.outputs), offset=int(rng.integers(3))
    )
    out: list[Any] = list(case.walls.buffers)
    for i, port in enumerate(schema.outputs):
        if port.name not in case.wanted:
            out[i] = None
        elif port.over and chance(rng, 4):
            at = [p.name for p in schema.inputs].index(port.over)
            over = arrays.numpy_of(case.inputs[at])
            if over.flags.writeable and over.strides == src.strides and over.flags.aligned:
                out[i] = case.inputs[at]
                case.in_place = True
        elif chance(rng, 12):
            out[i] = choose(rng, arrays.KINDS)(out[i])
    case.out = choose(rng, [tuple, lambda members: schema.result(*members)])(out)


def is_dense(array: np.ndarray) -> bool:
    """Tell whether an array has neither gaps nor items that share memory."""
    try:
        onedsl.TensorSpec.of(array)
    except ValueError:
        return False
    return True


def _spoil(rng: Rng, case: Case) -> None:
    """Do what may make the call wrong, once or twice."""
    for _ in range(int(rng.integers(1, 3))):
        i = int(rng.integers(len(case.inputs)))
        what = int(rng.integers(7))
        if what == 0:
            name = choose(rng, case.attributes)
            case.spoiled.append(name)
            case.attributes[name] = choose(rng, NO_NUMBERS)
        elif what == 1 and case.out is not None:
            case.spoiled.append("out")
            case.out = _spoiled_out(rng, case)
        elif what == 2:
            name = choose(rng, case.options)
            case.spoiled.append(name)
            case.options[name] = choose(rng, ["everything", None, 3, 1, "", True, []])
        elif what == 3 and isinstance(case.inputs[i], np.ndarray):
            array = case.inputs[i]
            if array.flags.writeable and array.dtype in helpers.NUMPY.values():
                case.spoiled.append("values")
                arrays.spoil(rng, array)
        else:
            case.spoiled.append(case.target.schema.inputs[i].name)
            value = case.inputs[i]
            if isinstance(value, np.ndarray):
                case.inputs[i] = arrays.wrong(rng, value)
            else:
                case.inputs[i] = choose(rng, [None, value, case.inputs[0]])


def _spoiled_out(rng: Rng, case: Case) -> Any:
    members = list(case.out) if isinstance(case.out, tuple) and case.out else [case.out]
    i = int(rng.integers(len(members)))
    match int(rng.integers(6)):
        case 0:
            return choose(rng, [3, "out", tuple(members[:-1]), (), members[0], {}])
        case 1:
            members[i] = None
        case 2 if isinstance(members[i], np.ndarray):
            members[i] = arrays.wrong(rng, members[i])
        case 3:
            members[i] = members[0]
        case 4:  # over an input, in part or wholly
            base = [v for v in case.inputs if isinstance(v, np.ndarray) and v.size]
            if base and isinstance(members[i], np.ndarray):
                memory = choose(rng, base)
                flat = memory.reshape(-1) if memory.flags.c_contiguous else memory
                if flat.ndim == 1 and flat.size >= members[i].size:
                    flat = flat[flat.size - members[i].size :]
                    if members[i].dtype == flat.dtype:
                        members[i] = flat.reshape(members[i].shape)
        case _:
            value = members[i]
            if isinstance(value, np.ndarray) and value.base is not None:
                members[i] = value.view()
                members[i].flags.writeable = False
    return tuple(members)
