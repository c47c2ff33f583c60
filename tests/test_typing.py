"""Type checkers accept valid programs and report every mistake in invalid ones."""

import importlib.util
import sys

import helpers
import pytest

import onedsl

PROGRAMS = helpers.TESTS / "typing"
REJECTED = PROGRAMS / "rejected.py"
# Those whose libraries are installed.
ACCEPTED = [
    PROGRAMS / "accepted.py",
    *(PROGRAMS / f"accepted_{lib}.py" for lib in ("jax", "torch") if importlib.util.find_spec(lib)),
]


@pytest.mark.slow
@pytest.mark.parametrize("program", ACCEPTED, ids=lambda program: program.stem)
def test_accepted_programs_run(program):
    helpers.run_script(program)


def test_every_public_name_is_used():
    text = (PROGRAMS / "accepted.py").read_text()
    for name in onedsl.__all__:
        assert f"onedsl.{name}" in text or name == "testing", name
    for name in onedsl.testing.__all__:
        assert f"testing.{name}" in text, name


@pytest.mark.slow
def test_mypy(pytestconfig):
    pytest.importorskip("mypy")
    cache = pytestconfig.cache.mkdir("mypy")
    helpers.check_types(
        "mypy", "--strict", "--config-file=", "--cache-dir", cache, REJECTED, *ACCEPTED
    )


@pytest.mark.slow
def test_pyright():
    """In strict mode, where an unused ignore comment is also an error."""
    pytest.importorskip("basedpyright")
    helpers.check_types(
        "basedpyright",
        *("--project", PROGRAMS / "pyrightconfig.json", "--pythonpath", sys.executable),
        REJECTED,
        *ACCEPTED,
    )


def test_every_mistake_has_the_comments_of_both_checkers():
    after = REJECTED.read_text().split("grad = ")[1].splitlines()[1:]
    for line in filter(None, after):
        assert "# type: ignore[" in line, line
        assert "# pyright: ignore[" in line, line
