"""Builds the pages of the documentation, and checks them.

    python .ci/check_pages.py

It needs pdoc, and PyTorch, JAX, Flax and Equinox for their pages.
"""

import html
import re
import tempfile
from pathlib import Path

from build_pages import build

import onedsl


def check(pages: dict[str, str]) -> None:
    """Check names, headings and signatures."""
    listed = {*re.findall(r"`(\w+)`", onedsl.__doc__ or ""), "__version__"}
    assert set(onedsl.__all__) <= listed, "the overview must list every name"
    for name in set(onedsl.__all__) - {"graph", "testing"}:
        assert f'id="{name}"' in pages["onedsl"], name
    for page in pages.values():
        sidebar = page.partition("API Documentation")[0]
        assert all(f">{module}</a>" in sidebar for module in pages)
    operators = [n for n in onedsl.__all__ if hasattr(getattr(onedsl, n), "epsilon")]
    functions = [("onedsl", f"{name}.__call__") for name in operators]
    functions += [("onedsl.torch", "batch_norm_backward"), ("onedsl.jax", "batch_norm")]
    functions += [("onedsl.equinox", "BatchNorm.__call__")]
    for module, name in functions:
        after = pages.get(module, "").partition(f'id="{name}"')[2]
        docstring = re.split(
            r'class="(?:attr|docstring|classattr)', after.partition('class="docstring"')[2]
        )[0]
        for heading in ("Parameters", "Returns") if module in pages else ():
            # Without __docformat__ all parameters would be one paragraph.
            expected = rf'<h6 id="{heading.lower()}\S*">{heading}</h6>'
            assert re.search(expected, docstring), (module, name, heading)
    calls = 0
    for page in pages.values():
        shown = re.findall(r'class="(?:signature|annotation)">(.*?)</span>\n', page, re.DOTALL)
        for text in (html.unescape(re.sub("<.*?>", "", signature)) for signature in shown):
            calls += "src: SrcArray,\n    diff_dst: AnyArray,\n" in text
            # pdoc prints the definition of an alias, up to 2,000 characters a function.
            assert not re.search(r"numpy\.|onedsl\.tensors|Union|noqa", text), text
    assert calls >= 3, "the signatures must name types as written"


def check_links(folder: Path) -> None:
    """Check that links between README, the guide and the API pages have targets."""
    for page in ("index.html", "guide.html"):
        text = (folder / page).read_text()
        links = re.findall(r'href="(?!http)([^"#]*)(?:#([^"]*))?"', text)
        assert len(links) > 15, page
        for path, anchor in links:
            target = folder / (path or page)
            assert target.exists(), path
            assert not anchor or f'id="{anchor}"' in target.read_text(), (page, path, anchor)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as new:
        folder = Path(new)
        names = build(folder)
        check({name: (folder / f"{name.replace('.', '/')}.html").read_text() for name in names})
        check_links(folder)
