"""A oneDNN that is absent, invalid, or without a CPU engine; and where the build finds it."""

import os
import runpy
import shutil
import sys
from pathlib import Path

import helpers
import ml_dtypes
import numpy as np
import pytest
from helpers import needs_compiler, preloaded

import onedsl
from onedsl import _core
from onedsl.runtime import onednn
from onedsl.runtime.import_errors import onednn_error_message

PIP = "pip install 'onednn-cpu-gomp<2024'"
CONDA = "conda install -c conda-forge onednn"
EXTENSIONS = {
    name: Path(_core.__file__).with_name(Path(_core.__file__).name.replace("_core", name))
    for name in ("_core", "_onednn")
}
USE = "import onedsl; onedsl.capabilities()"
# What needs no oneDNN.
NO_ONEDNN = """
import sys, numpy, onedsl
src = numpy.arange(12, dtype=numpy.float32).reshape(4, 3)
grads = onedsl.BatchNormTrainingBackward(1e-5)(src, src, src[0], src[0] + 1)
print(numpy.isfinite(grads.diff_src).all())
# Regression: an ImportError. pickle, and so torch.compile, searches all modules for a name.
print(not any(hasattr(module, "wanted") for module in list(sys.modules.values())))
def use():
    return onedsl.BatchNormTrainingBackward(1e-5)(src, src, src[0], src[0] + 1, backend="onednn")
"""


@pytest.fixture
def copied(tmp_path):
    """Copy the package's files to the site-packages of an environment without oneDNN.

    The extension looks for oneDNN three folders above itself, which is `lib` here.
    """
    site = tmp_path / "lib" / "python3" / "site-packages"
    package = site / "onedsl"
    package.mkdir(parents=True)
    source = Path(onedsl.__file__).parent
    for file in source.rglob("*.py"):
        copy = package / file.relative_to(source)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(file, copy)
    for extension in EXTENSIONS.values():
        shutil.copy(extension, package)
    for dependency in (np, ml_dtypes):
        (site / dependency.__name__).symlink_to(Path(dependency.__file__).parent)
        libraries = Path(dependency.__file__).parent.parent / f"{dependency.__name__}.libs"
        if libraries.is_dir():
            (site / libraries.name).symlink_to(libraries)
    metadata = site / "onedsl-0.0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: onedsl\nVersion: 0.0.0\n")
    return site


def run_copied(site: Path, code: str = USE, status: int = 1, **environment: str):
    """Run code with the copy only: -S leaves out the packages of this environment."""
    return helpers.run_python(
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(site)!r}); " + code,
        environment={"PYTHONPATH": "", **environment},
        status=status,
    )


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pybind11 raises")
def test_subinterpreters():
    """Regression: the import waited forever for the GIL."""
    code = (
        "from _xxsubinterpreters import create, run_string; run_string(create(), 'import onedsl')"
    )
    child = helpers.run_child(code, status=1)
    assert "onedsl must be imported in the main interpreter, got a subinter" in child.stderr


# Each fork imports onedsl twice, the first time with an interrupt, and prints two lines.
INTERRUPTED = """
import os, sys

class Interrupt:
    def find_spec(name, path=None, target=None):
        if name == module and Interrupt in sys.meta_path:
            sys.meta_path.remove(Interrupt)
            raise KeyboardInterrupt

for module in sys.argv[1:]:
    if os.fork() == 0:
        sys.meta_path.insert(0, Interrupt)
        for _ in range(2):
            try:
                import onedsl
                print(onedsl.TensorSpec((2, 3)), flush=True)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        os._exit(0)
    os.wait()
"""


def test_an_interrupted_import():
    """Regression: "onedsl's extension cannot be loaded", and a second import failed, too."""
    modules = "numpy", "ml_dtypes", "onedsl._core", "onedsl.testing"
    child = helpers.run_child(INTERRUPTED, arguments=modules)
    assert child.stdout == f"interrupted\n{onedsl.TensorSpec((2, 3))}\n" * len(modules)


@pytest.mark.parametrize("package", ["onedsl", "onedsl.torch", "onedsl.jax"])
def test_a_second_import(package):
    """Regression: errors of PyTorch and JAX, "Only a single TORCH_LIBRARY can be used"."""
    _, _, library = package.partition(".")
    pytest.importorskip(library or "numpy")
    child = helpers.run_child(f"""
import importlib, sys

importlib.import_module({package!r})
for name in [name for name in sys.modules if name.partition(".")[0] == "onedsl"]:
    del sys.modules[name]
try:
    importlib.import_module({package!r})
    print("imported")
except ImportError as error:
    print(error)
""")
    once = f"{package} must be imported once in a process, because "
    assert child.stdout.startswith(once if library else "imported")


def check_import_error(child) -> str:
    lines = child.stderr.strip().splitlines()
    start = max(i for i, line in enumerate(lines) if line.startswith("ImportError: "))
    message = "\n".join(lines[start:])
    assert "During handling" not in child.stderr
    assert "the direct cause of" in child.stderr, "the error of the loader is lost"
    for raw in ("cannot open shared object", "undefined symbol", "invalid ELF", "_core.c",
                "_onednn.c", ".py)"):  # fmt: skip
        assert raw not in message, "a raw line of the loader"
    return message


def library(site: Path) -> Path:
    return site.parent.parent / "libdnnl.so.3"


def use_library(site: Path) -> None:
    """Link the oneDNN of this process to where the copy searches it."""
    onednn.version()  # loads it
    maps = Path("/proc/self/maps").read_text().splitlines()
    loaded = next(line.split(maxsplit=5)[5] for line in maps if "libdnnl.so" in line)
    library(site).symlink_to(loaded)


def test_the_copy_works_with_a_library(copied):
    """The tests below must fail because of oneDNN and nothing else."""
    use_library(copied)
    child = run_copied(copied, USE + "; print(onedsl.__version__, onedsl.__file__)", 0)
    assert child.stdout.split() == ["0.0.0", str(copied / "onedsl" / "__init__.py")]


@pytest.mark.parametrize(
    ("library", "remedies"),
    [("libdnnl.so.3", {PIP, CONDA}), ("libgomp.so.1", {"apt-get install libgomp1"})],
)
def test_no_library(copied, library, remedies):
    """The extension is patched to require another file name, so that no run path has it.

    In small container images libgomp is missing, but neither onedsl nor oneDNN.
    """
    use_library(copied)
    module = "_onednn" if "dnnl" in library else "_core"
    extension = copied / "onedsl" / EXTENSIONS[module].name
    binary, name = extension.read_bytes(), library.encode() + b"\0"
    assert binary.count(name) == 1
    assert b"libdnnl" not in EXTENSIONS["_core"].read_bytes()
    extension.write_bytes(binary.replace(name, name[:-2] + b"x\0"))
    message = check_import_error(run_copied(copied))
    assert ("cannot find oneDNN" in message) == (PIP in remedies)
    assert {r for r in (PIP, CONDA, "apt-get install libgomp1") if r in message} == remedies


def test_python_in_lib64_finds_the_library_in_lib(copied):
    """pip installs the data files of a wheel to lib, even if packages are in lib64."""
    lib64 = copied.parents[1].rename(copied.parents[2] / "lib64")
    lib64.with_name("lib").mkdir()
    use_library(lib64.with_name("lib") / "python3" / "site-packages")
    child = run_copied(lib64 / "python3" / "site-packages", USE + "; print(onedsl.__file__)", 0)
    assert child.stdout.startswith(str(lib64))


def test_only_calls_of_onednn_need_it(copied):
    """Regression: the import failed, also for PyTorch's, JAX's and NumPy's users."""
    library(copied).write_bytes(b"no library")
    file = helpers.TESTS / "graphs" / "dumped_diff_src.json"
    code = f"""{NO_ONEDNN}
import pathlib
graph = onedsl.graph.Graph.from_json(pathlib.Path({str(file)!r}).read_text())
print("no partitions: onedsl cannot" in str(graph))
for _ in range(2):
    try:
        use()
    except ImportError as error:
        print("cannot use the installed oneDNN" in str(error))
pathlib.Path({str(library(copied))!r}).unlink()
try:
    use()
except ImportError as error:
    print("cannot find oneDNN" in str(error) or error)
"""
    assert run_copied(copied, code, 0).stdout.split() == ["True"] * 6


def test_the_functions_of_onednn_are_those_of_the_extension():
    import onedsl._onednn as loaded

    public = {name for name in vars(loaded) if not name.startswith("_")}
    assert public - {"set_error_types"} == onednn._NAMES


def test_library_beside_a_target_folder(copied):
    """`uv pip install --target` installs the library to lib in the folder, and pip leaves it out.

    The advice is not what was done.
    """
    target = copied.rename(copied.with_name("target"))
    message = check_import_error(run_copied(target))
    assert f"libdnnl.so.3 is not in {target / 'lib'}. " in message
    assert "uv pip install --target" in message
    assert PIP not in message
    use_library(target)
    (target / "lib").mkdir()
    library(target).rename(target / "lib" / "libdnnl.so.3")
    run_copied(target, USE, 0)


@pytest.mark.parametrize("content", ["empty", "without the Graph API"])
def test_invalid_library(copied, content):
    extension = Path(ml_dtypes._ml_dtypes_ext.__file__).read_bytes()
    library(copied).write_bytes(b"" if content == "empty" else extension)
    message = check_import_error(run_copied(copied, LD_LIBRARY_PATH=str(library(copied).parent)))
    assert "cannot use the installed oneDNN" in message
    assert PIP in message


def test_source_tree_without_an_extension_for_this_python(copied):
    extension = copied / "onedsl" / EXTENSIONS["_core"].name
    extension.rename(extension.with_name("_core.cpython-27-x86_64-linux-gnu.so"))
    message = check_import_error(run_copied(copied))
    assert "not built" in message
    assert "pip install -e ." in message


@needs_compiler
def test_libraries_that_onednn_needs(copied):
    """They are found beside libdnnl.so.3, which does not say where they are, or are named.

    Regression: a RUNPATH does not apply to them. oneDNN is a library without any function here. The
    version of libsvml that it needs is found nowhere else.
    """
    needed = library(copied).with_name("libsvml.so.99")
    build = (helpers.COMPILER, "-shared", "-fPIC", "-x", "c", os.devnull, "-Wl,--no-as-needed")
    helpers.run_program(*build, f"-Wl,-soname,{needed.name}", "-o", needed)
    helpers.run_program(
        *build, "-x", "none", needed, "-Wl,-soname,libdnnl.so.3", "-o", library(copied)
    )
    assert "cannot use the installed oneDNN" in check_import_error(run_copied(copied))
    needed.unlink()
    message = check_import_error(run_copied(copied))
    assert f"libdnnl.so.3 needs {needed.name}, which is not installed beside it" in message
    assert "pip install intel-cmplr-lib-rt\n" in message
    packages = {"libtbb": "tbb", "libintlc": "intel-cmplr-lib-rt", "libiomp5": "intel-openmp"}
    for name, package in packages.items():
        error = ImportError(f"{name}.so.99: cannot open shared object file")
        assert f"pip install {package}\n" in onednn_error_message(error)


@needs_compiler
def test_no_cpu_engine(tmp_path):
    """onedsl's kernels work; what needs oneDNN raises an error with the remedy."""
    helpers.run_script("no_engine.py", environment=preloaded("no_engine.c", tmp_path))


@needs_compiler
def test_forks_with_sycl(tmp_path):
    """Regression: a child hung if its parent had used oneDNN 3.13.2 of the PyPI wheel `onednn`."""
    child = helpers.run_script("sycl_fork.py", environment=preloaded("sycl_runtime.c", tmp_path))
    first, *refused, last = child.stdout.splitlines()
    assert (first, last, len(refused)) == ("works", "works", 3)
    for line in refused:
        assert line.startswith("runtime_error oneDNN ")
        assert "(CPU runtime SYCL) cannot run in a forked process" in line


@needs_compiler
def test_the_engine_is_not_destroyed_at_exit(tmp_path):
    """Regression: daemon threads may use it while the process exits."""
    environment = preloaded("engine_destroyed.c", tmp_path)
    program = "from onedsl.runtime import onednn; onednn.make_engine()"
    child = helpers.run_child(program, environment=environment)
    assert (child.stdout, child.stderr) == ("", "")


# The limits are read at the import. Each fork imports onedsl, and prints one line.
LIMITS = """
import os, sys, warnings, numpy
for value in sys.argv[1:]:
    if os.fork() == 0:
        os.environ.update(ONEDSL_MAX_CPU_ISA=value, ONEDNN_MAX_CPU_ISA="nonsense")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import onedsl
        print(*(f"{w.category.__name__}: {w.message}" for w in caught), flush=True)
        os._exit(0)
    os.wait()
"""


def test_an_unknown_isa_limit_warns_at_import():
    """The limit for oneDNN is oneDNN's."""
    known = "", "baseline", "avx2", "AVX2", "SSE41", "default"
    unknown = "avx1024", "fastest", "AVX 512"
    lines = helpers.run_child(LIMITS, arguments=(*known, *unknown)).stdout.splitlines()
    assert lines[: len(known)] == [""] * len(known)
    for value, line in zip(unknown, lines[len(known) :], strict=True):
        assert line.startswith("RuntimeWarning: ONEDSL_MAX_CPU_ISA must be one of ")
        for word in (value, "baseline, avx2, avx512, ", "AVX512_CORE_AMX, ", "DEFAULT"):
            assert word in line


def test_no_numpy(copied):
    """The error for another missing dependency does not blame oneDNN."""
    use_library(copied)
    (copied / "numpy").unlink()
    child = run_copied(copied)
    assert "No module named 'numpy'" in child.stderr
    assert PIP not in child.stderr


IMPORTS = """
import sys, numpy
before = set(sys.modules)
import onedsl
print(*set(sys.modules) - before)
import logging
assert not logging.getLogger("onedsl").handlers
"""


def test_import_is_quick_and_silent_and_imports_no_framework():
    """Only the package, its dependencies and the standard library are imported."""
    child = helpers.run_python("-W", "error", "-c", IMPORTS)
    assert child.stderr == ""
    modules = child.stdout.split()
    assert "onedsl" in modules
    assert {name.partition(".")[0] for name in modules} <= (
        {"onedsl", "numpy", "ml_dtypes", "_xxsubinterpreters"} | sys.stdlib_module_names
    )
    assert not {"onedsl.torch", "onedsl.jax", "onedsl.bench", "onedsl.__main__"} & set(modules)
    # Half of these come with importlib.metadata, which reads the version.
    assert sum(not name.startswith("onedsl") for name in modules) < 120


VARIABLES = "dnnl_ROOT", "DNNLROOT", "CMAKE_PREFIX_PATH"


@pytest.fixture
def find_onednn(monkeypatch):
    """The file that the build runs, without variables that say where oneDNN is."""
    for name in ("dnnl_DIR", *VARIABLES, "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return runpy.run_path(str(helpers.ROOT / "csrc" / "find_onednn.py"))


def test_a_folder_without_onednn_is_not_ignored(find_onednn, tmp_path, monkeypatch):
    """Regression: CMAKE_PREFIX_PATH without oneDNN's CMake files silently selected PyPI's."""
    find = find_onednn["environment_config"]
    assert find() is None
    for name in VARIABLES:
        monkeypatch.setenv(name, str(tmp_path))
        with pytest.raises(FileNotFoundError, match=rf"must have oneDNN's .*, got {tmp_path}\. "):
            find()
        monkeypatch.delenv(name)
    monkeypatch.setenv("CMAKE_PREFIX_PATH", str(tmp_path))
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    assert find() is None
    folder = tmp_path / "lib" / "x86_64-linux-gnu" / "cmake" / "dnnl"
    folder.mkdir(parents=True)
    (folder / "dnnl-config.cmake").touch()
    assert find() == folder


def test_a_system_wide_onednn_adds_no_requirement(find_onednn, tmp_path, monkeypatch):
    """Without the wheel, which isolated builds install, CMake may find the system's oneDNN."""
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    dependencies = find_onednn["dynamic_metadata"]
    for folder, added in ((tmp_path, [find_onednn["RUN_WHEEL"]]), (None, [])):
        monkeypatch.setitem(dependencies.__globals__, "wheel_config", lambda folder=folder: folder)
        assert dependencies({"always": ["numpy"]}, {}) == {"dependencies": ["numpy", *added]}
