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


def situations(*words, options=(), **environment):
    """Return what the program prints of situations, for each words."""
    program = helpers.PROGRAMS / "torch_huge_pages.py"
    child = helpers.run_python(*options, program, *words, environment=environment)
    lines = child.stdout.splitlines()
    return {
        name: (int(warned), used == "True", note)
        for name, warned, used, note in zip(
            words, lines[::3], lines[1::3], lines[2::3], strict=True
        )
    }


TOO_LATE = "a tensor was made before"
# The number of warnings, whether PyTorch uses huge pages, and words of the report.
SITUATIONS = {
    "enable": (0, True, ""),
    "enable disable": (0, True, ""),
    "enable model fork": (0, True, ""),
    "enable spawn": (0, True, ""),  # the child inherits the variable, and enables nothing
    "without": (0, False, ""),
    "tensor": (0, False, ""),
    "tensor without": (0, False, ""),
    "without enable": (1, False, TOO_LATE),
    "tensor enable enable": (1, False, TOO_LATE),
    "model enable": (1, False, TOO_LATE),
    f"{VARIABLE}= model enable": (1, False, TOO_LATE),
    "tensor spawn enable": (0, True, ""),
    "tensor enable spawn": (0, True, ""),
    f"{VARIABLE}= enable": (0, True, ""),
    f"{VARIABLE}=0 enable": (0, False, f"the environment sets {VARIABLE}=0"),
    f"{VARIABLE}=0 tensor enable": (0, False, f"the environment sets {VARIABLE}=0"),
    "ONEDSL_DISABLE=1 tensor enable": (0, False, ""),
    "no-threads enable": (0, True, ""),
    "no-threads without": (0, False, ""),
    "no-proc enable": (0, True, "unknown, "),
    "no-huge-pages tensor enable": (0, False, "for this process, by prctl(2)"),
}


@pytest.mark.skipif(not AVAILABLE, reason="the kernel has no huge pages")
def test_enable_switches_huge_pages_on():
    found = situations(*SITUATIONS)
    for words, (*expected, part) in SITUATIONS.items():
        *numbers, note = found[words]
        assert (*numbers, bool(note)) == (*expected, bool(part)), words
        assert part in note, words


@pytest.mark.skipif(not AVAILABLE, reason="the kernel has no huge pages")
def test_the_environment_and_the_launcher_switch_huge_pages_on():
    """PyTorch reads the variable in a process that begins with it."""
    (found,) = situations("tensor enable", **{VARIABLE: "1"}).values()
    assert found == (0, True, "")
    (found,) = situations("", options=("-m", "onedsl.torch")).values()
    assert found == (0, True, "")


@pytest.mark.skipif(not AVAILABLE, reason="the kernel has no huge pages")
def test_small_tensors_of_one_size():
    """Regression: each was a new mapping, with 512 page faults and more, and no huge page."""
    found = helpers.run_script("torch_equal_sizes.py").stdout.split()
    assert max(map(float, found)) < 50


@pytest.mark.skipif(AVAILABLE, reason="the kernel has huge pages")
def test_a_kernel_without_huge_pages():
    warned, used, note = situations("tensor enable")["tensor enable"]
    assert not warned
    assert not used
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


def megabytes(*loops):
    """Return how processes grow: their peaks, and what is resident after some steps."""
    child = helpers.run_script("torch_small_things.py", ",".join(loops), "enable")
    lines = [[int(word) for word in line.split()] for line in child.stdout.splitlines()]
    return dict(zip(loops, lines, strict=True))


# Limits of peaks in MB: about twice what was measured, which is what the largest tensors need.
# Not random_sizes: its peaks are 810 to 1,189 MB with PyTorch alone.
PEAKS = {"zeros": 400, "tensors": 200, "sizes": 400, "batches": 450, "sparse": 300}
PEAKS_OF_MANY = {"workers_21": 700}
SLOW_PEAKS = {"statistics": 700, "small": 300, "middle": 500, "workers_50": 1000}


@pytest.mark.parametrize(
    "peaks", [PEAKS | PEAKS_OF_MANY, pytest.param(SLOW_PEAKS, marks=pytest.mark.slow)], ids=",".join
)
def test_programs_that_keep_small_things(peaks):
    """Regression: malloc kept everything, and a program with 51 MB in use took 1,681 MB."""
    for loop, (peak, *after) in megabytes(*peaks).items():
        assert peak <= peaks[loop], loop
        assert loop not in PEAKS or max(after) <= 100, loop


@pytest.mark.slow
@pytest.mark.skipif(not AVAILABLE, reason="the kernel has no huge pages")
def test_hooks_that_keep_a_mean_of_each_layer():
    """PyTorch without huge pages grows by 40 MB a step here."""
    _, early, _, late = megabytes("hooks")["hooks"]
    assert late <= early + 60


def test_onedsl_disable_leaves_models_to_pytorch(monkeypatch):
    monkeypatch.setenv("ONEDSL_DISABLE", "1")
    with onedsl_torch.enable():
        assert not onedsl_torch.enabled()
    monkeypatch.setenv("ONEDSL_DISABLE", "0")
    with onedsl_torch.enable():
        assert onedsl_torch.enabled()
