"""Random calls of operators: valid calls, and calls with mutated (probably invalid) arguments."""

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import Any

import helpers
import numpy as np

import onedsl
from fuzz import arrays
from fuzz.arrays import Rng, choose, one_in
from fuzz.targets import TARGETS, Target

INVALID_NUMBERS: list[Any] = [
    *(0, -1.0, float("nan"), float("inf"), 1e-50, 1e39, 10**400, True, None, "1"),
    *([1e-5], np.array([1e-5]), 1e-5 + 0j, object()),
]


@dataclass
class Case:
    """A call of an operator. It is valid if `mutations` is empty."""

    target: Target
    attributes: dict[str, Any]
    inputs: list[Any]
    options: dict[str, Any]
    """The backend, and the option that requests outputs."""
    mode: str
    """"direct", "in passes" (reduce and apply) or "in parts" (both passes on parts of a batch)."""
    mutations: list[str] = field(default_factory=list)
    """Names of mutated arguments. The call must raise an error or return the correct result."""
    parts: list[tuple[slice, ...]] = field(default_factory=list)
    """Indices of the tensors' parts."""
    out: Any = None
    guard: helpers.Guarded | None = None
    """Checks the memory around `out`."""
    in_place: bool = False
    """Whether a member of `out` is also an input."""

    def __str__(self) -> str:
        return (
            f"{self.target.cls.__name__}({self.attributes}) "
            f"on {', '.join(map(_describe, self.inputs))}; {self.options}, {self.mode}, "
            f"out={'in place' if self.in_place else type(self.out).__name__}, "
            f"mutated: {', '.join(self.mutations) or 'nothing'}"
        )

    @property
    def channel_axis(self) -> int:
        """The channel axis of operators whose statistics have shape (C,)."""
        return 1 if self.attributes.get("data_format") == "NCX" else -1

    @property
    def backend(self) -> Any:
        """The backend option."""
        return self.options["backend"]

    @property
    def runs_onednn(self) -> bool:
        """Whether oneDNN runs the call. reduce and apply have no such option."""
        return self.mode == "direct" and self.backend == "onednn"

    @property
    def requested(self) -> list[str]:
        """Names of the outputs that the call requests."""
        schema = self.target.schema
        if self.target.option:
            name, all_outputs, _ = self.target.option
            if self.options[name] != all_outputs:
                return [port.name for port in schema.outputs if not port.optional]
        return [port.name for port in schema.outputs]


def _describe(value: Any) -> str:
    """Return the type, dtype, shape and strides of an array, or the repr of another object."""
    try:
        array = arrays.to_numpy(value)
        return f"{type(value).__name__} {array.dtype} {array.shape} with strides {array.strides}"
    except Exception:
        return repr(value)[:60]


# ---- Valid calls ----


def random_case(rng: Rng) -> Case:
    """Return a random call, which is valid with a probability of 1/2 and mutated otherwise."""
    target = choose(rng, TARGETS)
    dtype = choose(rng, target.schema.types)
    attributes = {name: choose(rng, valid) for name, valid in target.attributes.items()}
    _remove_parameters(attributes)
    attributes["epsilon"] = float(choose(rng, [1e-5, 1e-3, 1e-2, 1, 0.1, 1e-8]))
    if not target.broadcast:
        attributes["data_format"] = choose(rng, ["NXC", "NCX"])
    options = {"backend": choose(rng, ["auto", "auto", "auto", "onednn"])}
    if target.option:
        name, all_outputs, some = target.option
        options[name] = choose(rng, [all_outputs, all_outputs, some])
    mode = choose(rng, ["direct", *["in passes" if target.reduce_inputs else "direct"] * 2])
    case = Case(target, attributes, _random_tensors(rng, target, dtype), options, mode)
    _add_statistics(rng, case, choose(rng, target.schema.types[dtype]))
    _omit_optional_inputs(rng, case)
    _change_layouts(rng, case)
    if one_in(rng, 2):
        _add_out(rng, case)
    if one_in(rng, 2):
        _mutate(rng, case)
    elif mode == "in passes" and one_in(rng, 2):
        _split(rng, case)
    return case


def _remove_parameters(attributes: dict[str, Any]) -> None:
    """Remove the parameters of other activations."""
    if "activation" in attributes:
        if attributes["activation"] != "relu":
            attributes["clip"] = None
        if attributes["activation"] != "leaky_relu":
            attributes["negative_slope"] = None


def _random_tensors(rng: Rng, target: Target, dtype: str) -> list[Any]:
    """Return the inputs: random tensors, and None for each statistic."""
    shape = arrays.random_shape(rng, *target.schema.ranks)
    values = list(arrays.random_values(rng, shape))
    tensors: list[Any] = []
    for port in target.schema.inputs:
        if port.kind == "tensor":
            value = values.pop(0) if values else np.maximum(0, rng.standard_normal(shape)) * 4
            tensors.append(value.astype(helpers.NUMPY[dtype]))
        else:
            tensors.append(None)
    return tensors


def _add_statistics(rng: Rng, case: Case, dtype: str) -> None:
    """Add the statistics, gamma and beta: src's mean and variance, or random values."""
    src = case.inputs[0].astype(np.float64)
    if case.target.broadcast:
        kept = [axis for axis in range(src.ndim) if one_in(rng, 2)]
    else:
        kept = [case.channel_axis % src.ndim]
    summed = tuple(axis for axis in range(src.ndim) if axis not in kept)
    keepdims = [n if axis in kept else 1 for axis, n in enumerate(src.shape)]
    shape = keepdims if case.target.broadcast else [src.shape[axis] for axis in kept]
    of_src = src.size > 0 and one_in(rng, 2)
    for i, port in enumerate(case.target.schema.inputs):
        if port.kind != "channel vector":
            continue
        value = rng.uniform(0.5, 2, keepdims)
        if one_in(rng, 4) and "var" not in port.name:
            value = -value
        if of_src and port.name == "mean":
            value = src.mean(summed, keepdims=True)
        if of_src and port.name == "variance":
            value = src.var(summed, keepdims=True)
        case.inputs[i] = value.reshape(shape).astype(helpers.NUMPY[dtype])


def _omit_optional_inputs(rng: Rng, case: Case) -> None:
    """Replace some optional inputs by None, in valid combinations."""
    omitted = {name for name in ("gamma", "residual") if one_in(rng, 2)}
    if "gamma" in omitted:
        omitted.add("beta")
    if case.target.schema.alternatives:
        kept = choose(rng, _valid_alternatives(case))
        omitted = (omitted | {"residual", "dst"}) - {kept}
        if kept == "dst" and one_in(rng, 2):
            omitted.add("beta")
    for i, port in enumerate(case.target.schema.inputs):
        if port.optional and port.name in omitted:
            case.inputs[i] = None


def _valid_alternatives(case: Case) -> list[str]:
    """Return the optional inputs of which a valid call passes one, and "" for none."""
    attributes = case.attributes
    slope = attributes["negative_slope"]
    keeps_sign = attributes["activation"] == "leaky_relu" and (slope is None or slope > 0)
    follows_from_dst = attributes["activation"] == "relu" or keeps_sign
    needed = case.options["diff_residual"]
    return ["residual", *["dst"] * 2 * follows_from_dst, *[""] * (not needed)]


def _change_layouts(rng: Rng, case: Case) -> None:
    """Change the memory layouts of inputs, and convert some inputs to other array types.

    In most cases, all tensors have the same order of axes in memory.
    """
    model = arrays.permuted_copy(rng, case.inputs[0]) if one_in(rng, 2) else case.inputs[0]
    if one_in(rng, 5):
        model = arrays.random_layout(rng, model)
    for i, (port, value) in enumerate(zip(case.target.schema.inputs, case.inputs, strict=True)):
        if value is None:
            continue
        if port.kind == "tensor":
            array = arrays.copy_with_layout(value, model) if i else model
            if one_in(rng, 3):
                array = arrays.shifted_copy(rng, array)
            if one_in(rng, 8):
                array = arrays.random_layout(rng, value)
        else:
            array = arrays.random_layout(rng, value) if one_in(rng, 3) else value
        case.inputs[i] = array
    for i, value in enumerate(case.inputs):
        if value is not None and one_in(rng, 12):
            case.inputs[i] = choose(rng, arrays.ARRAY_TYPES)(value)


def _add_out(rng: Rng, case: Case) -> None:
    """Add `out` if src is dense. Its members are guarded buffers, or inputs of in-place calls."""
    schema = case.target.schema
    src = arrays.to_numpy(case.inputs[0])
    if not is_dense(src):
        return
    ports = zip(schema.inputs, case.inputs, strict=True)
    statistic = next(arrays.to_numpy(v) for p, v in ports if p.kind == "channel vector")
    models = {"tensor": src, "channel vector": np.empty(statistic.shape, statistic.dtype)}
    case.guard = helpers.Guarded(
        *(models[port.kind] for port in schema.outputs), offset=int(rng.integers(3))
    )
    out: list[Any] = list(case.guard.buffers)
    for i, port in enumerate(schema.outputs):
        if port.name not in case.requested:
            out[i] = None
        elif port.in_place and one_in(rng, 4):
            value = case.inputs[[p.name for p in schema.inputs].index(port.in_place)]
            array = arrays.to_numpy(value)
            if array.flags.writeable and array.strides == src.strides and array.flags.aligned:
                out[i], case.in_place = value, True
        elif one_in(rng, 12):
            out[i] = choose(rng, arrays.WRITABLE_TYPES)(out[i])
    case.out = tuple(out) if one_in(rng, 2) else schema.result(*out)


def _split(rng: Rng, case: Case) -> None:
    """Split the batch into parts along a summed axis, in a random order. Some parts are empty."""
    src = arrays.to_numpy(case.inputs[0])
    axis = choose(rng, set(range(src.ndim)) - {case.channel_axis % src.ndim})
    cuts = rng.integers(0, src.shape[axis], int(rng.integers(6)), endpoint=True)
    edges = [0, *sorted(cuts.tolist()), src.shape[axis]]
    parts = [(slice(None),) * axis + (slice(*edge),) for edge in itertools.pairwise(edges)]
    case.parts = [parts[i] for i in rng.permutation(len(parts))]
    case.mode, case.options["backend"] = "in parts", "auto"
    case.out, case.guard, case.in_place = None, None, False


def is_dense(array: np.ndarray) -> bool:
    """Return whether an array has no gaps and no items that share memory."""
    try:
        onedsl.TensorSpec.of(array)
    except ValueError:
        return False
    return True


# ---- Mutations ----


def _mutate(rng: Rng, case: Case) -> None:
    """Mutate one or two arguments, which may make the call invalid."""
    for _ in range(int(rng.integers(1, 3))):
        i = int(rng.integers(len(case.inputs)))
        value = case.inputs[i]
        match int(rng.integers(7)):
            case 0:
                name = choose(rng, case.attributes)
                case.attributes[name] = choose(rng, INVALID_NUMBERS)
            case 1 if case.out is not None:
                name, case.out = "out", _mutated_out(rng, case)
            case 2:
                name = choose(rng, case.options)
                case.options[name] = choose(rng, ["everything", None, 3, 1, "", True, []])
            case 3 if isinstance(value, np.ndarray):
                if not value.flags.writeable or value.dtype not in helpers.NUMPY.values():
                    continue
                name = "values"
                arrays.insert_special_values(rng, value)
            case _:
                name = case.target.schema.inputs[i].name
                if isinstance(value, np.ndarray):
                    case.inputs[i] = arrays.of_any_type(rng, arrays.mutated(rng, value))
                else:
                    case.inputs[i] = choose(rng, [None, value, case.inputs[0]])
        case.mutations.append(name)


def _mutated_out(rng: Rng, case: Case) -> Any:
    """Return a variant of `out` that is probably invalid."""
    members = list(case.out) if isinstance(case.out, tuple) and case.out else [case.out]
    i = int(rng.integers(len(members)))
    variant = int(rng.integers(8))
    if variant == 0:
        return choose(rng, [3, "out", tuple(members[:-1]), (), members[0], {}])
    if variant == 1:
        members[i] = None
    elif variant == 2:
        members[i] = members[0]
    else:
        with contextlib.suppress(AttributeError):  # mutated before
            member = arrays.to_numpy(members[i])
            members[i] = arrays.of_any_type(rng, _mutated_member(rng, case, member))
    return tuple(members)


def _mutated_member(rng: Rng, case: Case, member: np.ndarray) -> Any:
    """Return a variant of a member of `out` that is probably invalid."""
    match int(rng.integers(4)):
        case 0:
            return arrays.mutated(rng, member)
        case 1:
            return _overlapping(rng, case, member)
        case 2:
            return arrays.strided_copy(rng, member)
    return helpers.read_only(member)


def _overlapping(rng: Rng, case: Case, member: np.ndarray) -> np.ndarray:
    """Return an array like this member of `out` that overlaps the end of an input.

    Return the member itself if no input has the right size and dtype.
    """
    inputs = [v for v in case.inputs if isinstance(v, np.ndarray) and v.size]
    if not inputs:
        return member
    memory = choose(rng, inputs)
    flat = memory.reshape(-1) if memory.flags.c_contiguous else memory
    if flat.ndim != 1 or flat.size < member.size or flat.dtype != member.dtype:
        return member
    return flat[flat.size - member.size :].reshape(member.shape)
