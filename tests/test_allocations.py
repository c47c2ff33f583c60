"""Calls in which one allocation fails: the right exception, and the next call works."""

import pytest
from helpers import check_failing_allocations, needs_compiler

pytestmark = needs_compiler


def test_numpy(tmp_path):
    """Regression: rejected and copied calls ended the process."""
    doors = "call", "out", "copied", "strided", "scratch", "rejected", "parts"
    check_failing_allocations(tmp_path, *doors, "operator", "verbose")


def test_graphs(tmp_path):
    """Regression: an output that had to be writable, SystemError and RuntimeError."""
    check_failing_allocations(tmp_path, "onednn", "graph", "graph_out")


@pytest.mark.slow
def test_compilation_of_graphs(tmp_path):
    check_failing_allocations(tmp_path, "graph_compiled", timeout=1800)


def test_pytorch(tmp_path):
    """Regression: PyTorch's from_blob, and new scopes of `enable`, ended the process."""
    pytest.importorskip("torch", reason="PyTorch is optional, and not installed here")
    doors = "tensors", "report", "enable_small", "enable_large", "layer_small", "layer_large"
    check_failing_allocations(tmp_path, *doors)


@pytest.mark.slow
def test_compiled_models(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is optional, and not installed here")
    check_failing_allocations(tmp_path, "compiled_small", "compiled_large", timeout=300)


def test_jax(tmp_path):
    pytest.importorskip("jax", reason="JAX is optional, and not installed here")
    check_failing_allocations(tmp_path, "jax")
