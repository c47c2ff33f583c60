"""The C++ tests of what memory safety rests on. `.ci/sanitize cpp` runs all C++ tests."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import helpers
import pytest

CPP = helpers.TESTS / "cpp"
CORE = helpers.ROOT / "csrc" / "core"
COMPILER = next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), "")


@pytest.mark.skipif(not COMPILER, reason="compiles C++ files: no compiler")
def test_check_and_geometry(tmp_path):
    """They need no kernels."""
    sources = [CPP / "main.cpp", CPP / "test_check.cpp", CPP / "test_geometry.cpp"]
    sources += [CORE / "check.cpp", CORE / "geometry.cpp", CORE / "view.cpp"]
    options = ["-std=c++17", "-O1", f"-I{helpers.ROOT / 'csrc'}", f"-I{CPP}"]
    program, objects = tmp_path / "core_tests", [tmp_path / f"{s.stem}.o" for s in sources]

    def compile_it(source, target):
        helpers.run_program(COMPILER, *options, "-c", source, "-o", target)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(compile_it, sources, objects))
    helpers.run_program(COMPILER, *objects, "-o", program)
    assert helpers.run_program(program).stdout == "check: passed\ngeometry: passed\n"
