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

    reason: str
    """The core's reason, a name of csrc/core/check.hpp, or "" if Python rejects it before."""
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


def _of(port: str, reason: str, change: Callable[[Any], Any]) -> Fault:
    """Return the fault of an input, of the calls that pass it."""
    return Fault(
        reason,
        lambda call, values: values | {port: change(values[port])},
        lambda call: call.values.get(port) is not None,
    )


def _member(reason: str, change: Callable[[Any], Any], at: int = 0) -> Fault:
    """Return the fault of a member of `out`."""
    return _of_out(reason, lambda out, inputs: [*out[:at], change(out[at]), *out[at + 1 :]])


def _of_out(reason: str, change: Callable[[list[Any], list[Any]], Any]) -> Fault:
    return Fault(reason, change_out=change, applies=lambda call: call.out == "given")


def _too_large(call: Call, values: Values) -> Values:
    """Repeat an element 2^52 times per channel and sample, without memory for them."""
    channels = values["mean"].size
    shape = helpers.shape_of(call.data_format, 6, channels, (2**40, 2**12))
    large = np.lib.stride_tricks.as_strided(np.ones(1, values["src"].dtype), shape, [0] * 4)
    tensors = "src", "diff_dst", "residual", "dst"
    return values | {name: large for name in tensors if values.get(name) is not None}


FAULTS = {
    "epsilon is NaN": Fault("", attributes={"epsilon": float("nan")}),
    "src is no array": _of("src", "", lambda a: "src"),
    "src is f64": _of("src", "type", lambda a: a.astype(np.float64)),
    "src has one dimension": _of("src", "rank", lambda a: a.reshape(-1)),
    "src is too large": Fault("size", _too_large),
    "diff_dst has another shape": _of("diff_dst", "like_shape", lambda a: a[:-1]),
    "diff_dst is f64": _of("diff_dst", "like_type", lambda a: a.astype(np.float64)),
    "residual has another shape": _of("residual", "like_shape", lambda a: a[:-1]),
    "residual is f64": _of("residual", "like_type", lambda a: a.astype(np.float64)),
    "mean is absent": _of("mean", "", lambda a: None),
    "mean has another size": _of("mean", "statistics_shape", lambda a: a[:-1]),
    "mean is f64": _of("mean", "statistics_type", lambda a: a.astype(np.float64)),
    "variance has another size": _of("variance", "like_shape", lambda a: a[:-1]),
    "variance is f64": _of("variance", "like_type", lambda a: a.astype(np.float64)),
    "gamma has another size": _of("gamma", "like_shape", lambda a: a[:-1]),
    "gamma is f64": _of("gamma", "like_type", lambda a: a.astype(np.float64)),
    "beta is absent": Fault(
        "all_or_none",
        lambda call, values: values | {"beta": None},
        lambda call: bool(call.target.schema.all_or_none) and call.omits("dst"),
    ),
    "residual and dst are given": Fault(
        "alternatives",
        lambda call, values: values | {"dst": values["residual"]},
        lambda call: bool(call.target.schema.alternatives) and not call.omits("residual"),
    ),
    "dst has another derivative": Fault(
        "activation",
        attributes={"activation": "silu", "negative_slope": None},
        applies=lambda call: call.given == "dst",
    ),
    "out needs a residual": Fault(
        "one_of",
        lambda call, values: values | {"residual": None},
        lambda call: bool(call.target.schema.alternatives) and call.given == "all",
        requested="all",
    ),
    "dst has another shape": _of("dst", "like_shape", lambda a: a[:-1]),
    "out is too short": _of_out("", lambda out, inputs: out[:-1]),
    "out is None in a member": _member("", lambda a: None),
    "out is f64": _member("like_type", lambda a: a.astype(np.float64)),
    "out has another shape": _member("like_shape", lambda a: a[:-1]),
    "out has other strides": _member("layout", lambda a: helpers.in_order(a, (1, 0, 2, 3))),
    "out has a strided statistic": _member("layout", lambda a: np.repeat(a, 2)[::2], 1),
    "out is not aligned": _member("not_aligned", helpers.unaligned),
    "out is read-only": _member("read_only", helpers.read_only),
    "out is read-only in its third member": _of_out(
        "read_only", lambda out, inputs: [*out[:2], helpers.read_only(out[2]), *out[3:]]
    ),
    "out overlaps src": _of_out("overlap", lambda out, inputs: [inputs[0][::-1], *out[1:]]),
    "out overlaps itself": _of_out("overlap", lambda out, inputs: [*out[:2], out[1], *out[3:]]),
}
"""The faults. Those whose names begin with "out" are faults of the argument `out`."""

OF_F64 = [name for name in FAULTS if name.endswith("f64") and not name.startswith("out")]
OF_STATISTICS = [name for name in FAULTS if name.startswith(("mean", "variance"))]
"""Those of mean and variance, which are running statistics in forward passes."""
