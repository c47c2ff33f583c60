"""Memory that malloc keeps: page faults of processes, and who has set malloc before."""

import os

import helpers
import pytest


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in os.environ:
        if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES":
            monkeypatch.delenv(name)


def outputs(check, environment=None):
    child = helpers.run_script("kept_memory.py", check, environment=environment or {})
    return child.stdout.split(), child.stderr


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ("as_it_is", ["True"]),
        ("kept", ["True", "True"]),
        ("threads", ["True", "True"]),
        ("forked", ["True", "True"]),
        ("returned", ["True"] * 4),
        ("large", ["True", "True"]),
    ],
)
def test_page_faults(check, expected):
    assert outputs(check) == (expected, "")


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "65536", "MALLOC_MMAP_THRESHOLD_"),
        ("MALLOC_TRIM_THRESHOLD_", "100000", "MALLOC_TRIM_THRESHOLD_"),
        (
            "GLIBC_TUNABLES",
            "glibc.malloc.arena_max=3:glibc.malloc.tcache_count=3",
            "glibc.malloc.tcache_count",
        ),
    ],
)
def test_settings_of_the_user_remain(variable, value, named):
    (result,), log = outputs("logged", {variable: value})
    assert result == "False"
    assert f"the environment sets {named}\n" in log


@pytest.mark.parametrize(
    "environment",
    [
        {"GLIBC_TUNABLES": "glibc.cpu.x86_ibt=off"},
        {"GLIBC_TUNABLES": "glibc.malloc.arena_max=3"},
        {"MALLOC_ARENA_MAX": "2"},
    ],
    ids=str,
)
def test_other_settings_of_the_user(environment):
    """Regression: with MALLOC_ARENA_MAX, usual in containers, the call did nothing."""
    assert outputs("kept", environment)[0] == ["True", "True"]


@helpers.needs_compiler
def test_another_malloc_is_left_alone(tmp_path):
    (result,), log = outputs("logged", helpers.preloaded("another_malloc.c", tmp_path))
    assert result == "False"
    assert "malloc is not glibc's" in log


@helpers.needs_compiler
@pytest.mark.parametrize("options", [("-no-pie", "-fno-pie"), ("-pie", "-fpie")], ids=" ".join)
def test_executables_with_an_entry_for_malloc(options, tmp_path):
    """Debian's Python has a fixed address, and dlsym then finds the executable's own entries."""
    program = tmp_path / "program"
    csrc = helpers.ROOT / "csrc"
    sources = helpers.PROGRAMS / "malloc_is_glibcs.cpp", csrc / "core" / "malloc_settings.cpp"
    flags = f"-I{csrc}", "-std=c++17", "-O1", *options
    helpers.run_program(helpers.COMPILER, *flags, *sources, "-o", program, "-ldl")
    assert helpers.run_program(program).stdout == "True\n"
    preloaded = helpers.preloaded("another_malloc.c", tmp_path)
    assert helpers.run_program(program, env=preloaded).stdout == "False\n"
