"""How onedsl's kernels run a call."""

from __future__ import annotations

from typing import Any

from ..tensors.dtypes import CORE
from ..tensors.spec import TensorSpec
from .base import ChannelOperator
from .validation import check_spec


def kernel_info(
    operator: ChannelOperator[Any], spec: TensorSpec, stats_dtype: object = "f32"
) -> dict[str, Any]:
    """Return how the kernels run a call that passes all inputs and computes all outputs.

    The members are ``geometry`` (outer size, channels, inner size), ``implementation``,
    ``num_threads``, and, unless the tensor is empty, the order of summation and the schedule.
    """
    schema = operator._schema
    statistics = check_spec(schema, spec, stats_dtype)
    info = operator._core.kernel_info(
        data=CORE[spec.dtype],
        shape=spec.shape,
        strides=spec.strides,
        statistics=CORE[statistics],
    )
    assert info is not None  # the spec is dense
    return info
