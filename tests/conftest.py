"""Settings of the test suite."""

import importlib.metadata
import os

import pytest

import onedsl
from onedsl import _core
from onedsl.runtime import onednn

pytest.register_assert_rewrite("helpers", "jax_helpers", "torch_helpers")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def pytest_report_header() -> list[str]:
    version = ".".join(map(str, onednn.version()))
    packages = ("numpy", "ml_dtypes", "torch", "jax")
    others = ", ".join(f"{name} {_version(name)}" for name in packages)
    caps = {
        name: os.environ[name]
        for name in ("ONEDNN_MAX_CPU_ISA", "ONEDSL_MAX_CPU_ISA")
        if name in os.environ
    }
    return [
        f"onedsl {onedsl.__version__}, oneDNN {version} ({onednn.cpu_runtime()}), {others}",
        f"instruction sets: oneDNN {onednn.cpu_isa()}, onedsl {_core.native_isa()}"
        f"{f', capped by {caps}' if caps else ''}; {_core.max_threads()} threads",
    ]


@pytest.fixture
def without_code(monkeypatch):
    """Let inductor run its graphs operator by operator, so that nothing has to be generated."""
    from functorch.compile import make_boxed_func

    import onedsl.torch._backend as module

    original = module.compile_fx
    monkeypatch.setattr(
        module,
        "compile_fx",
        lambda *args, **kwargs: original(
            *args, inner_compile=lambda graph, *_, **__: make_boxed_func(graph.forward), **kwargs
        ),
    )
