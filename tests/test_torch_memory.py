"""PyTorch's huge pages, which `enable` switches on, and the memory of programs that use it."""

import os
from pathlib import Path

import helpers
import pytest
from torch_helpers import onedsl_torch

from onedsl.torch import _huge_pages as huge_pages

KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
AVAILABLE = KERNEL.exists() and "[never]" not in KERNEL.read_text()
VARIABLE = "THP_MEM_ALLOC_ENABLE"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in os.environ:
        if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES":
            monkeypatch.delenv(name)


def situation(words, environment=None, options=()):
    """Return the number of warnings, whether PyTorch uses huge pages, and what `report` shows."""
    child = helpers.run_python(
        *options,
        helpers.PROGRAMS / "torch_huge_pages.py",
        *words.split(),
        environment=environment or {},
    )
    warned, used, note = child.stdout.splitlines()
    return int(warned), used == "True", note


@pytest.mark.skipif(not AVAILABLE, reason="the kernel has no huge pages")
@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        ("enable", {}, (0, True, "")),
        ("enable disable", {}, (0, True, "")),
        ("enable model fork", {}, (0, True, "")),
        ("enable spawn", {}, (0, True, "")),  # the child inherits the variable, and enables nothing
        ("without", {}, (0, False, "")),
        ("tensor", {}, (0, False, "")),
        ("tensor without", {}, (0, False, "")),
        ("without enable", {}, (1, False, "a tensor was made before")),
        ("tensor enable enable", {}, (1, False, "a tensor was made before")),
        ("model enable", {}, (1, False, "a tensor was made before")),
        ("model enable", {VARIABLE: ""}, (1, False, "a tensor was made before")),
        ("tensor spawn enable", {}, (0, True, "")),
        ("tensor enable spawn", {}, (0, True, "")),
        ("tensor enable", {VARIABLE: "1"}, (0, True, "")),
        ("enable", {VARIABLE: ""}, (0, True, "")),
        ("enable", {VARIABLE: "0"}, (0, False, f"the environment sets {VARIABLE}=0")),
        ("tensor enable", {VARIABLE: "0"}, (0, False, f"the environment sets {VARIABLE}=0")),
        ("tensor enable", {"ONEDSL_DISABLE": "1"}, (0, False, "")),
        ("no-threads enable", {}, (0, True, "")),
        ("no-threads without", {}, (0, False, "")),
        ("no-proc enable", {}, (0, True, "unknown, ")),
    ],
)
def test_enable_switches_huge_pages_on(words, environment, expected):
    *found, note = situation(words, environment)
    assert (*found, bool(note)) == (*expected[:2], bool(expected[2]))
    assert expected[2] in note


@pytest.mark.skipif(not AVAILABLE, reason="the kernel has no huge pages")
def test_the_launcher_switches_huge_pages_on():
    assert situation("", options=("-m", "onedsl.torch")) == (0, True, "")


@pytest.mark.skipif(not AVAILABLE, reason="the kernel has no huge pages")
def test_small_tensors_of_one_size():
    """Regression: each was a new mapping, with 512 page faults and more, and no huge page."""
    found = helpers.run_script("torch_equal_sizes.py").stdout.split()
    assert max(map(float, found)) < 50


@pytest.mark.skipif(AVAILABLE, reason="the kernel has huge pages")
def test_a_kernel_without_huge_pages():
    warned, used, note = situation("tensor enable")
    assert not warned
    assert not used
    assert note.startswith("PyTorch's tensors have no huge pages")


def test_a_process_without_huge_pages():
    """prctl(2) switches them off, as some programs do for their children."""
    code = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    warned, _, note = situation("tensor enable", options=("-c", code))
    assert not warned
    assert note.startswith("PyTorch's tensors have no huge pages")


@pytest.mark.parametrize(
    ("kernel", "of_2_mb", "is_off"),
    [
        ("always [madvise] never", None, False),
        ("always madvise [never]", None, True),
        ("always [madvise] never", "always inherit madvise [never]", True),
        ("always [madvise] never", "always [inherit] madvise never", False),
        ("always madvise [never]", "always [inherit] madvise never", True),
        ("always madvise [never]", "[always] inherit madvise never", False),
    ],
)
def test_the_setting_of_the_size(kernel, of_2_mb, is_off, tmp_path, monkeypatch):
    """Since Linux 6.8, pages of 2 MB have one of their own."""
    monkeypatch.setattr(huge_pages, "_KERNEL", tmp_path)
    (tmp_path / "enabled").write_text(kernel)
    if of_2_mb:
        (tmp_path / "hugepages-2048kB").mkdir()
        (tmp_path / "hugepages-2048kB" / "enabled").write_text(of_2_mb)
    assert ("switched off" in huge_pages.why_unavailable()) == is_off


def megabytes(loop, setting):
    """Return how a process grows: its peak, and what is resident after some steps."""
    child = helpers.run_script("torch_small_things.py", loop, setting)
    return [int(word) for word in child.stdout.split()]


@pytest.mark.parametrize(
    "loop",
    [
        *("zeros", "tensors", "sizes", "batches", "sparse", "workers_21"),
        *(
            pytest.param(loop, marks=pytest.mark.slow)
            for loop in ("statistics", "small", "middle", "workers_50")
        ),
    ],
)
def test_programs_that_keep_small_things(loop):
    """Regression: malloc kept everything, and a program with 51 MB in use took 1,681 MB."""
    # Not random_sizes: its peaks are 810 to 1,189 MB with PyTorch alone.
    of_pytorch, *_ = megabytes(loop, "PyTorch")
    peak, *after = megabytes(loop, "enable")
    assert peak <= 1.25 * of_pytorch + 120
    if loop in ("zeros", "tensors", "sizes", "batches", "sparse"):
        assert max(after) <= 60


@pytest.mark.slow
@pytest.mark.skipif(not AVAILABLE, reason="the kernel has no huge pages")
def test_hooks_that_keep_a_mean_of_each_layer():
    """PyTorch without huge pages grows by 40 MB a step here."""
    _, early, _, late = megabytes("hooks", "enable")
    assert late <= early + 60


def test_onedsl_disable_leaves_models_to_pytorch(monkeypatch):
    monkeypatch.setenv("ONEDSL_DISABLE", "1")
    with onedsl_torch.enable():
        assert not onedsl_torch.enabled()
    monkeypatch.setenv("ONEDSL_DISABLE", "0")
    with onedsl_torch.enable():
        assert onedsl_torch.enabled()
