"""How the kernels divide the work. What they require of it: the C++ tests."""

from __future__ import annotations

import math

import helpers

import onedsl
from onedsl import _core
from onedsl.operators.base import kernel_info


@helpers.formats
def test_kernel_info(data_format):
    op = onedsl.BatchNormTrainingBackward(1e-5, data_format)
    info = kernel_info(op, onedsl.TensorSpec((8, 32, 40, 48)))
    assert math.prod(info["geometry"]) == 8 * 32 * 40 * 48
    assert 1 <= info["threads"] <= info["num_threads"] == _core.max_threads()
    assert info["columns"] == (data_format == "NXC")
    assert _core.native_isa() in info["implementation"]


def test_no_schedule_of_empty_tensors():
    info = kernel_info(onedsl.BatchNormTrainingBackward(1e-5), onedsl.TensorSpec((0, 4)))
    assert info.keys() == {"geometry", "implementation", "num_threads"}
