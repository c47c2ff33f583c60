"""The API pages that pdoc generates from the docstrings."""

import html
import importlib.util
import re

import helpers
import pytest

import onedsl

pytest.importorskip("pdoc")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    modules = [
        "onedsl",
        *(f"onedsl.{name}" for name in ("torch", "jax") if importlib.util.find_spec(name)),
    ]
    # In an empty folder, so that pdoc finds the installed onedsl and not a folder of that name.
    child = helpers.run_python(
        *("-m", "pdoc", "-t", str(helpers.ROOT / ".ci" / "pdoc"), "-o", str(folder), *modules),
        cwd=tmp_path_factory.mktemp("empty"),
    )
    assert "Warn" not in child.stderr, child.stderr
    modules += ["onedsl.graph", "onedsl.testing"]
    return {module: (folder / f"{module.replace('.', '/')}.html").read_text() for module in modules}


def test_pages_have_every_public_name(pages):
    for name in set(onedsl.__all__) - {"graph", "testing"}:
        assert f'id="{name}"' in pages["onedsl"], name


OPERATORS = [n for n in onedsl.__all__ if hasattr(getattr(onedsl, n), "epsilon")]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        *(("onedsl", f"{name}.__call__") for name in OPERATORS),
        ("onedsl.torch", "batch_norm_backward"),
        ("onedsl.jax", "batch_norm"),
    ],
)
def test_pages_have_parameters_and_returns(pages, module, name):
    """Regression: without __docformat__ all parameters were one paragraph."""
    pytest.importorskip(module.rpartition(".")[2])
    after = pages[module].partition(f'id="{name}"')[2].partition('class="docstring"')[2]
    docstring = re.split(r'class="(?:attr|docstring|classattr)', after)[0]
    for heading in ("Parameters", "Returns"):
        assert re.search(rf'<h6 id="{heading.lower()}\S*">{heading}</h6>', docstring)


def test_signatures_name_types_as_written(pages):
    """Regression: pdoc printed the definition of each alias, up to 2,000 characters a function."""
    calls = 0
    for page in pages.values():
        shown = re.findall(r'class="(?:signature|annotation)">(.*?)</span>\n', page, re.DOTALL)
        signatures = [html.unescape(re.sub("<.*?>", "", text)) for text in shown]
        calls += sum("src: SrcArray,\n    diff_dst: AnyArray,\n" in text for text in signatures)
        for text in signatures:
            assert not re.search(r"numpy\.|onedsl\.tensors|Union|noqa", text), text
    assert calls >= 3


def test_the_overview_lists_every_name():
    listed = {*re.findall(r"`(\w+)`", onedsl.__doc__), "__version__"}
    assert set(onedsl.__all__) <= listed


def test_the_sidebar_lists_all_modules(pages):
    for page in pages.values():
        sidebar = page.partition("API Documentation")[0]
        for module in pages:
            assert f">{module}</a>" in sidebar
