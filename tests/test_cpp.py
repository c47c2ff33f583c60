"""The C++ tests, and the symbols and instructions of the kernels' object files."""

import os
import re
import shutil
from pathlib import Path

import helpers
import pytest

slow = pytest.mark.slow  # compiles the kernels a second time

ISAS = ["baseline", "avx2", "avx512", "avx512_bf16"]
CPP = helpers.TESTS / "cpp"
CORE = helpers.ROOT / "csrc" / "core"
COMPILER = next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), "")


@pytest.mark.skipif(not COMPILER, reason="compiles C++ files: no compiler")
def test_check_and_geometry(tmp_path):
    """The tests of what memory safety rests on. They need no kernels."""
    sources = [CPP / "main.cpp", CPP / "test_check.cpp", CPP / "test_geometry.cpp"]
    sources += [CORE / "check.cpp", CORE / "geometry.cpp", CORE / "view.cpp"]
    options = ["-std=c++17", "-O1", f"-I{helpers.ROOT / 'csrc'}", f"-I{CPP}"]
    program = tmp_path / "core_tests"
    helpers.run_program(COMPILER, *options, *sources, "-o", program)
    assert helpers.run_program(program).stdout == "check: passed\ngeometry: passed\n"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the test program and return its build folder."""
    cmake = pytest.importorskip("cmake", reason="the extra `dev` is not installed")
    ninja = pytest.importorskip("ninja", reason="the extra `dev` is not installed")
    folder = tmp_path_factory.mktemp("cpp")
    tools = Path(cmake.CMAKE_BIN_DIR)
    maker = f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}"
    helpers.run_program(
        tools / "cmake", "-S", helpers.TESTS / "cpp", "-B", folder, "-G", "Ninja", maker
    )
    helpers.run_program(tools / "cmake", "--build", folder, timeout=1200)
    return folder


@slow
def test_cpp(build):
    ctest = Path(pytest.importorskip("cmake").CMAKE_BIN_DIR) / "ctest"
    report = helpers.run_program(
        ctest, "--test-dir", build, "--output-on-failure", timeout=1800
    ).stdout
    assert "100% tests passed" in report


@slow
@pytest.mark.parametrize("isa", ISAS)
def test_kernels_share_no_symbol(build, isa):
    """The linker keeps one copy of a symbol, which could be for an ISA that the CPU lacks."""
    (kernels,) = build.rglob(f"kernels_{isa}.cpp.o")
    listed = helpers.run_program("nm", "--defined-only", "-P", kernels).stdout
    symbols = [line.split() for line in listed.splitlines()]
    shared = [name for name, kind, *_ in symbols if kind.isupper() or kind in "uvw"]
    assert shared == [f"_ZN6onedsl6native{len(isa)}{isa}7kernelsERKNS0_9KernelKeyE"]


# The functions of csrc/native/*.inl whose loops read or write a tensor.
LOOPS = "add_rows|add_pairs_of_rows|reduce_columns|reduce_planes|write_span|write_segments"
# The sums that are left to the CPU's own prefetching, see csrc/native/NOTES.md.
NO_PREFETCH = r"\b(GradientTerms|MomentTerms)<float>"


def kernels_without_prefetches(kernels: Path) -> list[str]:
    """Return the functions of an object file that have such loops and do not prefetch."""
    prefetches: dict[str, int] = {}
    function = ""
    listed = helpers.run_program("objdump", "-dC", "--no-show-raw-insn", kernels).stdout
    for line in listed.splitlines():
        if line.endswith(">:"):
            function = line
            prefetches[function] = 0
        elif "prefetcht1" in line:
            prefetches[function] += 1
    prefetches = {f: n for f, n in prefetches.items() if not re.search(NO_PREFETCH, f)}
    without = [f for f, n in prefetches.items() if not n and re.search(rf"\b({LOOPS})\b", f)]
    # The compiler may inline the loops over planes into functions that it may not inline.
    formulas = set(re.findall(r"\w+(?:Terms|Result)<(?:[^<>]|<[^<>]*>)*>", " ".join(prefetches)))
    assert len(formulas) >= 20  # of each type: thirteen terms and twelve results
    for formula in formulas:
        names = "reduce|reduce_planes" if "Terms" in formula else "write|write_segments"
        loops = [f for f in prefetches if f"{formula}::write<" not in f]  # which is of one vector
        of_planes = [f for f in loops if formula in f and re.search(rf"\b({names})\b", f)]
        if of_planes and not any(prefetches[f] for f in of_planes):
            without += of_planes
    return without


@slow
@pytest.mark.parametrize("isa", ISAS)
def test_every_kernel_prefetches(build, isa):
    """GCC removes prefetches that it takes for calls without effect."""
    (kernels,) = build.rglob(f"kernels_{isa}.cpp.o")
    assert kernels_without_prefetches(kernels) == []
