"""The package onedsl.torch: PyTorch's version, names in saved models."""

from __future__ import annotations

import importlib
import pickle

import pytest
from torch_helpers import dynamo, onedsl_torch, tensors, torch


def test_an_older_pytorch_is_an_import_error(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.2+cpu")
    with pytest.raises(ImportError, match=r"requires PyTorch 2\.11 or newer, got 2\.10\.2"):
        importlib.reload(onedsl_torch)


@pytest.mark.parametrize("name", ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"])
def test_saved_layers_name_the_public_module(name):
    """Saved models remain loadable when the package's files are renamed."""
    layer = getattr(onedsl_torch, name)(3)
    saved = pickle.dumps(layer)
    assert b"onedsl.torch" in saved
    assert b"onedsl.torch._" not in saved
    assert type(pickle.loads(saved)) is type(layer)


@dynamo
def test_the_function_compiles_to_one_graph():
    problem = tensors((4, 5, 6, 7), "f32")

    def gradients(*tensors):
        return onedsl_torch.batch_norm_backward(*tensors, epsilon=1e-5)

    compiled = torch.compile(gradients, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*problem), gradients(*problem), strict=True):
        assert torch.equal(a, b)
