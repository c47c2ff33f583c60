"""Calls in which one allocation fails: the right exception, and the next call works."""

import re

import helpers
import pytest

pytestmark = helpers.needs_compiler


def check(folder, *entry_points, flags="", **options):
    """Check calls of entry points of programs/failing_allocation.py.

    Return the number of allocations that failed, one in each call.
    """
    environment = {"PYTHONMALLOC": "malloc", "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags}
    environment |= helpers.preloaded("failing_allocation.c", folder)
    options["environment"] = environment
    child = helpers.run_script("failing_allocation.py", *entry_points, **options)
    assert child.stdout.endswith("done\n")
    return sum(map(int, re.findall(r"(\d+) allocations", child.stdout)))


def test_numpy(tmp_path):
    """Regression: rejected and copied calls ended the process."""
    entry_points = "call", "out", "copied", "copied_back", "strided", "scratch", "rejected", "parts"
    check(tmp_path, *entry_points, "operator", "verbose")


def test_graphs(tmp_path):
    """Regression: an output that had to be writable, SystemError and RuntimeError."""
    check(tmp_path, "onednn", "graph", "graph_out")


@pytest.mark.slow
def test_compilation_of_graphs(tmp_path):
    check(tmp_path, "graph_compiled", timeout=1800)


def test_pytorch(tmp_path):
    """Regression: PyTorch's import of results, and new scopes of `enable`, ended the process."""
    pytest.importorskip("torch", reason="PyTorch is optional, and not installed here")
    entry_points = "enable_small", "enable_large", "layer_small", "layer_large"
    check(tmp_path, "tensors", "tensors_of_graph", "report", *entry_points)


@pytest.mark.slow
def test_compiled_models(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is optional, and not installed here")
    check(tmp_path, "compiled_small", "compiled_large")


def test_jax(tmp_path):
    pytest.importorskip("jax", reason="JAX is optional, and not installed here")
    check(tmp_path, "jax_small")


def test_pool_of_xla(tmp_path):
    """Regression: calls ended while tasks of XLA's pool still used their memory."""
    pytest.importorskip("jax", reason="JAX is optional, and not installed here")
    devices = "--xla_force_host_platform_device_count=4"
    in_pool = check(tmp_path, "jax_large", flags=devices) - check(tmp_path, "jax_alone")
    assert in_pool > 0  # allocations of the pool alone
