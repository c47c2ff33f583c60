"""What a case's call must give, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import testing
from .cases import Case
from .memory import EPSILON, Array, Memory
from .operations import OPERATIONS


def expected(case: Case, taken: Memory) -> dict[str, Array]:
    """Compute the results of a call on the first copy of its tensors, by name.

    Of a forward pass the one that is as large as src; of a chain the last layer's.
    """
    options: dict[str, Any] = {"epsilon": EPSILON, "data_format": case.data_format}
    results: dict[str, Array] = {}
    for layer in taken.copies[0]:
        given = {**taken.vectors, **layer}
        if results:  # a chain: each layer reads what the one before wrote, as it was rounded
            given["diff_dst"] = results["diff_src"].astype(layer["src"].dtype)
        results = _of_layer(case.operation, given, options)
    return results


def _of_layer(
    operation: str, given: Mapping[str, Array], options: Mapping[str, Any]
) -> dict[str, Array]:
    src, gamma, beta = given["src"], given["gamma"], given["beta"]
    if operation.endswith("forward"):
        dst = testing.batch_norm(src, gamma, beta, **options)
        if "residual" in OPERATIONS[operation].inputs:
            dst = dst + given["residual"].astype(np.float64)
        return {"dst": np.maximum(dst, 0) if "relu" in operation else dst}
    arguments = src, given["diff_dst"], given["mean"], given["variance"], gamma
    if "relu" not in operation:
        return testing.batch_norm_backward(*arguments, **options)._asdict()
    gradients = testing.batch_norm_relu_backward(*arguments, dst=given["dst"], **options)._asdict()
    return {name: gradients[name] for name in OPERATIONS[operation].outputs}
