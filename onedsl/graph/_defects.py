"""The known defects of oneDNN, for which graphs are rejected, or calls emit a warning.

A table has the defects of batch norm's ops. `Graph.compile` raises or warns by it,
`Graph.partitions` and drawings show it, `Graph.repaired` applies its repairs, and the documentation
and tests print and run its rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from ..runtime import onednn
from ..runtime.errors import UnsupportedError
from ..runtime.versions import version_text
from ..tensors.arrays import span
from ._parts import FORWARD, GRADIENT, KINDS, GraphOp, LogicalTensor, ports_of, tensors_of

Effect = Literal["crash", "wrong", "refused"]
"""``"crash"``: an exception that ends a C++ program, or invalid memory accesses. ``"wrong"``: other
results than documented. ``"refused"``: an error of oneDNN, which leaks memory."""
OUTCOMES: dict[Effect, str] = {
    "crash": "compile() rejects it",
    "refused": "compile() rejects it",
    "wrong": "calls warn, as their results are wrong",
}


class Defect(NamedTuple):
    """A row of the table."""

    name: str
    effect: Effect
    applies: Callable[[GraphOp], bool]
    what: str
    """What happens, as a sentence without a full stop."""
    seen_in: tuple[tuple[int, int, int], ...]
    """The versions that were seen to do this, in ascending order."""
    remedy: str
    """What to do, as a sentence without a full stop. `message` adds the repair."""
    repair: str = ""
    """The method of `onedsl.graph._repair.Repairs` that avoids it, if there is one."""
    fixed_in: tuple[int, int, int] | None = None
    """The first version that was seen not to do this."""
    right_in: tuple[int, int, int] | None = None
    """The last version before those of `seen_in` that was seen not to do this. Required unless the
    oldest version of the table does."""
    of_intel: bool = True
    """Whether builds by Intel's compiler do this, too."""

    def is_in(self, version: tuple[int, int, int]) -> bool | None:
        """Return whether a version of oneDNN has this defect, or None if that is unknown.

        For example seen in 3.2 and 3.11: 3.5 has it, and 3.1 and 3.13 may. If it was right in 3.0,
        that and older ones do not have it. The version is one by the loaded oneDNN's compiler, on
        which some defects depend.
        """
        if onednn.is_of_intel() and not self.of_intel:
            return False
        if self.fixed_in is not None and version >= self.fixed_in:
            return False
        if self.right_in is not None and version <= self.right_in:
            return False
        return True if self.seen_in[0] <= version <= self.seen_in[-1] else None

    def message(self, version: tuple[int, int, int]) -> str:
        """Return what happens, the versions that do it, and the remedy, for a loaded version."""
        versions = ", ".join(map(version_text, self.seen_in))
        if version not in self.seen_in:
            versions += f"; not known for the loaded {version_text(version)}"
        remedy = f"{self.remedy}, or compile graph.repaired()" if self.repair else self.remedy
        return f"{self.what} (seen in oneDNN {versions}). {remedy}"


def _rank(op: GraphOp) -> int:
    return len(op.inputs[0].shape or ())


def _is_empty(op: GraphOp) -> bool:
    return 0 in (op.inputs[0].shape or ())


def statistics_of(op: GraphOp) -> list[LogicalTensor]:
    """Return the statistics of an op."""
    return [tensor for _, _, port, tensor in ports_of(op) if port.kind == "channel vector"]


def _span(tensor: LogicalTensor) -> int:
    """Return the number of elements from the first to the last in memory."""
    return 1 + span(tensor.shape or (), tensor.strides or ())


def _has_gaps(tensor: LogicalTensor) -> bool:
    """Return whether a tensor, whose elements do not overlap, has memory between them."""
    shape = tensor.shape or ()
    return 0 not in shape and _span(tensor) > math.prod(shape)


def _lacks_kernel(dtype: str, op: GraphOp) -> bool:
    return op.inputs[0].dtype == dtype and onednn.missing_isa(dtype) != ""


_V3_2, _V3_11, _V3_13, _SYCL = (3, 2, 0), (3, 11, 0), (3, 13, 1), (3, 13, 2)
_ALL = (_V3_2, _V3_11, _V3_13, _SYCL)

DEFECTS = (
    Defect(
        "six dimensions",
        "crash",
        lambda op: _rank(op) > 5,
        "tensors of 6 dimensions or more corrupt the heap or give wrong results, because oneDNN "
        "takes depth, height and width from the last three dimensions and drops those between",
        (_V3_2, _V3_13, _SYCL),
        "Reshape to 4 or 5 dimensions",
        "to_rank_4",
    ),
    Defect(
        "NXC of rank 2 or 3",
        "crash",
        lambda op: op.kind == GRADIENT and op.data_format == "NXC" and _rank(op) < 4,
        f"{GRADIENT} in NXC with fewer than 4 dimensions ends in std::bad_alloc or "
        "std::length_error, which ends a C++ program",
        _ALL,
        "Reshape to 4 dimensions, for example (N, 1, X, C)",
        "to_rank_4",
    ),
    Defect(
        "forward of rank 2 or 3",
        "refused",
        lambda op: op.kind == FORWARD and _rank(op) < 4,
        f'{FORWARD} with fewer than 4 dimensions is rejected ("partition compile failed")',
        (_V3_2,),
        "Reshape to 4 dimensions, for example (N, 1, X, C)",
        "to_rank_4",
        fixed_in=_V3_13,
    ),
    Defect(
        "three outputs without gamma",
        "crash",
        lambda op: op.kind == GRADIENT and len(op.inputs) == 4 and len(op.outputs) == 3,
        f"{GRADIENT} with three outputs and no gamma ends in std::out_of_range, which ends a C++ "
        "program",
        _ALL,
        "Pass gamma = 1",
        "add_parameters",
    ),
    Defect(
        "forward without beta",
        "refused",
        lambda op: op.kind == FORWARD and len(op.inputs) == 4,
        f"{FORWARD} with gamma and without beta is in no pattern of oneDNN",
        (_V3_2, _V3_13, _SYCL),
        "Pass beta = 0",
        "add_parameters",
    ),
    Defect(
        "two outputs",
        "refused",
        lambda op: op.kind == GRADIENT and len(op.outputs) == 2,
        f"{GRADIENT} with two outputs is in no pattern of oneDNN",
        _ALL,
        "Request all three outputs",
        "add_sums",
    ),
    Defect(
        "diff_src alone",
        "wrong",
        lambda op: op.kind == GRADIENT and len(op.outputs) == 1,
        "if diff_src is the only output, it is diff_dst / sqrt(variance + epsilon), as if mean and "
        "variance were constants, although the documentation only says that gamma is ignored",
        _ALL,
        "Request all three outputs",
        "add_sums",
    ),
    Defect(
        "16-bit statistics",
        "refused",
        lambda op: any(statistic.dtype != "f32" for statistic in statistics_of(op)),
        "statistics of 16 bits are in the documentation, but in no pattern of oneDNN",
        _ALL,
        "Pass f32 statistics",
        "statistics_to_f32",
    ),
    Defect(
        "strided statistics",
        "crash",
        lambda op: any(map(_has_gaps, statistics_of(op))),
        "strides of statistics are ignored, so that numbers are read and written between the "
        "elements of a caller's array",
        (_V3_2, _V3_13, _SYCL),
        "Pass statistics without gaps",
    ),
    Defect(
        "empty tensors of several strides",
        "crash",
        lambda op: (
            _is_empty(op) and len({t.strides for t in tensors_of(op) if len(t.shape or ()) > 1}) > 1
        ),
        "empty tensors whose strides differ end in a division by zero, except in builds by Intel's "
        "compiler, such as those of PyPI with TBB or with Intel's OpenMP",
        (_V3_2,),
        "Pass empty tensors of one memory order",
        of_intel=False,
    ),
    Defect(
        "empty src in the gradient",
        "wrong",
        lambda op: op.kind == GRADIENT and _is_empty(op),
        "diff_gamma and diff_beta are not written if src is empty",
        (_V3_11, _V3_13, _SYCL),
        "The operator writes zeros",
        right_in=_V3_2,
    ),
    Defect(
        "empty src in the forward pass",
        "wrong",
        lambda op: op.kind == FORWARD and _is_empty(op),
        "the statistics are not written if src is empty",
        _ALL,
        "The operator writes zeros, and keeps the running statistics",
    ),
    *(
        Defect(
            f"no {dtype} kernel",
            "refused",
            functools.partial(_lacks_kernel, dtype),
            f"oneDNN has no {dtype} kernel for CPUs without {isa}",
            _ALL,
            "Call the operator: onedsl's own kernels have no such limit",
        )
        for dtype, isa in (("bf16", "avx512_core"), ("f16", "avx512_core_fp16"))
    ),
)


def defects_of(op: GraphOp) -> list[Defect]:
    """Return the defects that the loaded oneDNN has, or may have, for a valid op."""
    if not KINDS[op.kind].is_batch_norm:
        return []
    version = onednn.version()
    return [d for d in DEFECTS if d.is_in(version) is not False and d.applies(op)]


def limit_of(ops: Sequence[GraphOp]) -> str:
    """Return why onedsl passes valid ops to no version of oneDNN's compiler, or "".

    Random graphs of other ops than batch norm, or of several, accessed memory out of bounds in
    oneDNN 3.2.0, 3.13.1 and 3.13.2 if tensors had gaps (the fusion of a forward pass with a ReLU),
    had six dimensions or more, or were empty. Other graphs did not.
    """
    is_safe = len(ops) == 1 and KINDS[ops[0].kind].is_batch_norm
    for tensor in (tensor for op in ops for tensor in tensors_of(op)):
        shape = tensor.shape or ()
        if not is_safe and (len(shape) > 5 or 0 in shape or _has_gaps(tensor)):
            return (
                "graphs of several ops must have tensors of at most 5 dimensions, not empty "
                f"and without gaps, got {tensor}: oneDNN 3.2.0, 3.13.1 and 3.13.2 access memory "
                "out of bounds for some others"
            )
        if _span(tensor) >= 2**31:
            return "tensors must have fewer than 2^31 elements to be passed to oneDNN"
    return ""


def _decisive(op: GraphOp) -> list[Defect]:
    """Return the defects of a valid op. If it has no kernel on this CPU, no repair helps."""
    found = defects_of(op)
    no_kernel = [d for d in found if d.effect == "refused" and not d.repair]
    return [d for d in no_kernel if d.is_in(onednn.version())] or found


def check_supported(ops: Sequence[GraphOp], try_anyway: bool) -> None:
    """Raise UnsupportedError for valid ops that must not reach oneDNN's compiler."""
    version = onednn.version()
    if limit := limit_of(ops):
        raise UnsupportedError(limit, "unimplemented")
    for defect in (defect for op in ops for defect in _decisive(op)):
        known = defect.is_in(version)
        if defect.effect == "crash" and (known or not try_anyway):
            remedy = "" if known else ". compile(try_anyway=True) tries it all the same"
            raise UnsupportedError(defect.message(version) + remedy, "unimplemented")
        if defect.effect == "refused" and known:
            raise UnsupportedError(defect.message(version), "unimplemented")


def messages(ops: Sequence[GraphOp]) -> tuple[str, ...]:
    """Return what is known to go wrong with ops of a graph."""
    version = onednn.version()
    found = [f"{OUTCOMES[d.effect]}: {d.message(version)}" for op in ops for d in _decisive(op)]
    return tuple(dict.fromkeys(found))


def wrong_results(ops: Sequence[GraphOp]) -> tuple[str, ...]:
    """Return the messages of the defects with which ops of a graph run all the same."""
    version = onednn.version()
    defects = [d for op in ops for d in defects_of(op) if d.effect == "wrong"]
    return tuple(dict.fromkeys(d.message(version) for d in defects))


def documented() -> str:
    """Return the table for the documentation of `onedsl.graph`."""
    rows = "\n".join(
        f"| {d.what} | {', '.join(map(version_text, d.seen_in))} | {OUTCOMES[d.effect]} | "
        f"{'yes' if d.repair else 'no'} |"
        for d in DEFECTS
    )
    return f"""
Defects
-------
What oneDNN is known to do wrong, the versions that were seen to do it, what `Graph.compile` or a
call of its result does about it, and whether `Graph.repaired` avoids it. All other graphs of the
kinds of ops that the operators use are right, within the tolerance of
``onedsl.testing.assert_close(..., backend="onednn")``, or are rejected with oneDNN's message.
oneDNN 3.2.0 may crash while it compiles a graph without the memory for it; 3.13.1 then compiles no
further one.

| what | seen in oneDNN | as written | repaired |
|---|---|---|---|
{rows}
"""
