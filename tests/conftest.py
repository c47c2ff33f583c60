"""Settings of the test suite."""

import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onedsl
from onedsl import _core
from onedsl.runtime import onednn

pytest.register_assert_rewrite("helpers", "jax_helpers", "torch_helpers")


TESTS = Path(__file__).parent
MESSAGES = TESTS / "messages" / "messages.json"
"""The words of errors and of the log, by test."""


SKIPPED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-expected",
        action="store_true",
        help="write messages/messages.json and laws/coverage.txt",
    )
    parser.addoption(
        "--write-skipped",
        metavar="FILE",
        type=Path,
        help="write the skipped tests to a file: pytest @FILE runs them, with more libraries",
    )
    parser.addoption(
        "--calls",
        metavar="N",
        type=int,
        help="test at most N calls of each operator, door and law: for repetitions",
    )


def pytest_configure(config: pytest.Config) -> None:
    from doors.base import Door  # the option `pythonpath` applies only now

    if (most := config.getoption("--calls")) is not None:
        Door.most = most


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    file = config.getoption("--write-skipped")
    if file is not None:
        skipped = terminalreporter.stats.get("skipped", [])
        file.write_text("".join(f"{report.nodeid}\n" for report in skipped), encoding="utf-8")


@pytest.hookimpl(tryfirst=True)  # before tests are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Find words of tests that no longer exist, in files that are collected whole or do not exist.

    Without PyTorch or JAX, fewer tests exist. With --write-expected, the words are removed.
    """
    libraries = map(importlib.util.find_spec, ("torch", "jax"))
    if any("::" in argument for argument in config.args) or not all(libraries):
        return
    names = {f"{item.path.name}::{item.name}" for item in items}
    others = {path.name for path in TESTS.rglob("test_*.py")} - {item.path.name for item in items}
    known = json.loads(MESSAGES.read_text(encoding="utf-8"))
    stale = [name for name in known if name not in names and name.partition("::")[0] not in others]
    if stale and config.getoption("--write-expected"):
        _write_messages({name: words for name, words in known.items() if name not in stale})
    elif stale:
        raise pytest.UsageError(
            f"messages.json has words of tests that do not exist: {stale}. pytest --write-expected "
            "removes them"
        )


def _write_messages(known: dict[str, list[str]]) -> None:
    text = json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False)
    MESSAGES.write_text(f"{text}\n", encoding="utf-8")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note whether the test was skipped, before its fixtures end."""
    report = yield
    item.stash[SKIPPED] = report.skipped
    return report


@pytest.fixture
def says(request: pytest.FixtureRequest) -> Iterator[Callable[[BaseException | str], None]]:
    """A function that compares an error's type and words, or a text, with those in messages.json.

    All words in messages.json must occur. Addresses are left out. With --write-expected, the words
    are written instead of compared.
    """
    name, found = f"{request.path.name}::{request.node.name}", list[str]()

    def compare(error: BaseException | str) -> None:
        kind = "" if isinstance(error, str) else f"{type(error).__name__}: "
        found.append(kind + re.sub("0x[0-9a-f]+", "0x...", str(error)))
        known = json.loads(MESSAGES.read_text(encoding="utf-8"))
        if request.config.getoption("--write-expected"):
            _write_messages(known | {name: found})
        else:
            expected = known.get(name, [])[len(found) - 1 :]
            assert [found[-1]] == expected[:1], "pytest --write-expected writes the new words"

    yield compare
    if request.node.stash[SKIPPED]:
        return
    # Otherwise the test has failed before.
    if found == (expected := json.loads(MESSAGES.read_text(encoding="utf-8"))[name])[: len(found)]:
        assert found == expected, "pytest --write-expected removes words that do not occur"


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


# Other variables do not change what the tests do; libraries set many of them at their first use.
VARIABLES = ("ONEDSL_", "ONEDNN_", "DNNL_", "OMP_", "MALLOC_", "PYTHON", "PATH", "HOME", "COLUMNS")


def process_state() -> dict[str, Any]:
    """Return the state of the process that a test may change only if it restores it."""
    state: dict[str, Any] = {}
    if torch := sys.modules.get("torch"):
        # First, because it sets OpenMP's number at its first use.
        state["threads of PyTorch"] = torch.get_num_threads()
        state["default dtype of PyTorch"] = torch.get_default_dtype()
        state["grad mode of PyTorch"] = torch.is_grad_enabled()
        state["deterministic mode of PyTorch"] = torch.are_deterministic_algorithms_enabled()
    if package := sys.modules.get("onedsl.torch"):
        state["onedsl.torch.enable"] = package.enabled()
    if jax := sys.modules.get("jax"):
        state["64-bit types of JAX"] = jax.config.jax_enable_x64
    state["threads of OpenMP"] = _core.max_threads()
    state["CPUs"] = os.sched_getaffinity(0)
    state["working folder"] = os.getcwd()
    state["trace function"] = sys.gettrace()
    state["switch interval"] = sys.getswitchinterval()
    state["float errors"] = np.geterr()
    state["subscribers of the run log"] = _core.subscribers()
    logger = logging.getLogger("onedsl")
    state["logger"] = logger.level, logger.handlers[:], logger.filters[:], logger.propagate
    return state | {k: v for k, v in os.environ.items() if k.startswith(VARIABLES)}


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory):
    """Replace the user's terminal and caches, which the tests and their children would inherit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "110")
        for name in ("FORCE_COLOR", "NO_COLOR", "PYTHONUNBUFFERED", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        for name in ("MPLCONFIGDIR", "XDG_CACHE_HOME"):  # the home folder may not exist
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


@pytest.fixture(autouse=True)
def without_variable_of_enable():
    """Begin without the variable that an earlier `enable` set, which child processes inherit."""
    with pytest.MonkeyPatch.context() as patch:  # not the test's, which ends before the check below
        patch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
        yield


@pytest.fixture(autouse=True)
def no_state_left_behind(without_variable_of_enable):
    """Fail a test that leaves the process in another state: the next test would depend on it."""
    libraries = {"torch", "jax", "onedsl.torch"}
    imported, before = libraries & sys.modules.keys(), process_state()
    yield
    after = process_state()
    if libraries & sys.modules.keys() != imported:
        return  # a first import changes the process
    names = [name for name in before | after if before.get(name) != after.get(name)]
    assert not names, {name: (before.get(name), after.get(name)) for name in names}


@pytest.fixture
def without_code():
    """Let PyTorch's interpreter run the backend's graphs, so that no code has to be generated."""
    from doors.of_torch import interpreted

    with interpreted():
        yield
