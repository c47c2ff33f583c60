"""What can be invalid in a call: one change of a valid call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import helpers
import numpy as np

if TYPE_CHECKING:
    from cases.calls import Call

Values = dict[str, Any]


class Fault(NamedTuple):
    """One change of a valid call."""

    change: Callable[[Call, Values], Values] = lambda call, values: values
    """Return the inputs, by oneDNN's names."""
    applies: Callable[[Call], bool] = lambda call: True
    """Whether a valid call can have this fault."""
    attributes: Mapping[str, Any] = {}
    """Attributes of the operator."""
    requested: str = ""
    """The outputs that the call requests instead."""
    change_out: Callable[[list[Any], list[Any]], list[Any]] | None = None
    """Return the members of `out`. The arguments are the valid ones, and the inputs."""


def _of(port: str, change: Callable[[Any], Any]) -> Fault:
    """Return the fault of an input, of the calls that pass it."""
    return Fault(
        lambda call, values: values | {port: change(values[port])},
        lambda call: call.values.get(port) is not None,
    )


def _member(change: Callable[[Any], Any], at: int = 0) -> Fault:
    """Return the fault of a member of `out`."""
    return Fault(
        change_out=lambda out, inputs: [*out[:at], change(out[at]), *out[at + 1 :]],
        applies=lambda call: call.out == "given",
    )


def _of_out(change: Callable[[list[Any], list[Any]], Any]) -> Fault:
    return Fault(change_out=change, applies=lambda call: call.out == "given")


FAULTS = {
    "epsilon is NaN": Fault(attributes={"epsilon": float("nan")}),
    "src is no array": _of("src", lambda a: "src"),
    "src is f64": _of("src", lambda a: a.astype(np.float64)),
    "src has one dimension": _of("src", lambda a: a.reshape(-1)),
    "diff_dst has another shape": _of("diff_dst", lambda a: a[:-1]),
    "diff_dst is f64": _of("diff_dst", lambda a: a.astype(np.float64)),
    "residual has another shape": _of("residual", lambda a: a[:-1]),
    "residual is f64": _of("residual", lambda a: a.astype(np.float64)),
    "mean is absent": _of("mean", lambda a: None),
    "mean has another size": _of("mean", lambda a: a[:-1]),
    "mean is f64": _of("mean", lambda a: a.astype(np.float64)),
    "variance has another size": _of("variance", lambda a: a[:-1]),
    "gamma has another size": _of("gamma", lambda a: a[:-1]),
    "gamma is f64": _of("gamma", lambda a: a.astype(np.float64)),
    "beta is absent": Fault(
        lambda call, values: values | {"beta": None},
        lambda call: bool(call.target.schema.all_or_none) and call.omits("dst"),
    ),
    "residual and dst are given": Fault(
        lambda call, values: values | {"dst": values["residual"]},
        lambda call: bool(call.target.schema.alternatives) and not call.omits("residual"),
    ),
    "dst has another derivative": Fault(
        attributes={"activation": "silu", "negative_slope": None},
        applies=lambda call: call.given == "dst",
    ),
    "out needs a residual": Fault(
        lambda call, values: values | {"residual": None},
        lambda call: bool(call.target.schema.alternatives) and call.given == "all",
        requested="all",
    ),
    "dst has another shape": _of("dst", lambda a: a[:-1]),
    "out is too short": _of_out(lambda out, inputs: out[:-1]),
    "out is None in a member": _member(lambda a: None),
    "out is f64": _member(lambda a: a.astype(np.float64)),
    "out has another shape": _member(lambda a: a[:-1]),
    "out has other strides": _member(lambda a: helpers.in_order(a, (1, 0, 2, 3))),
    "out has a strided statistic": _member(lambda a: np.repeat(a, 2)[::2], 1),
    "out is read-only": _member(helpers.read_only),
    "out is read-only in its third member": _of_out(
        lambda out, inputs: [*out[:2], helpers.read_only(out[2]), *out[3:]]
    ),
    "out overlaps src": _of_out(lambda out, inputs: [inputs[0][::-1], *out[1:]]),
    "out overlaps itself": _of_out(lambda out, inputs: [*out[:2], out[1], *out[3:]]),
}
"""The faults. Those whose names begin with "out" are faults of the argument `out`."""

OF_F64 = [name for name in FAULTS if name.endswith("f64") and not name.startswith("out")]
OF_STATISTICS = [name for name in FAULTS if name.startswith(("mean", "variance"))]
"""Those of mean and variance, which are running statistics in forward passes."""
