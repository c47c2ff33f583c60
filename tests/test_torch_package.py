"""onedsl.torch as a package: what its classes are called, and its function in a compiled graph."""

from __future__ import annotations

import pickle

import helpers
import numpy as np
import pytest
from helpers import EPSILON

torch = pytest.importorskip("torch", reason="PyTorch is optional: pip install torch==2.13.0")

import onedsl.torch  # noqa: E402 - it needs PyTorch


@pytest.mark.parametrize("name", ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"])
def test_saved_layers_name_the_public_module(name):
    """A model that is saved today loads whatever the package's files are called tomorrow."""
    layer = getattr(onedsl.torch, name)(3)
    saved = pickle.dumps(layer)
    assert b"onedsl.torch" in saved
    assert b"_layers" not in saved
    assert type(pickle.loads(saved)) is type(layer)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's compiler's own
def test_the_function_compiles_in_one_graph():
    problem = [
        torch.from_numpy(np.array(a))
        for a in helpers.case((4, 5, 6, 7), "f32", "f32", "NCX").problem
    ]

    def gradients(*tensors):
        return onedsl.torch.batch_norm_backward(*tensors, epsilon=EPSILON)

    compiled = torch.compile(gradients, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*problem), gradients(*problem), strict=True):
        assert torch.equal(a, b)
