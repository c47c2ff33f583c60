"""Builds the documentation's site: README, the guide, and the API pages.

    python .ci/build_pages.py FOLDER

It needs pdoc, and PyTorch, JAX, Flax and Equinox for their pages.
"""

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import markdown2

ROOT = Path(__file__).resolve().parents[1]
SOURCES = "https://github.com/onedsl/onedsl/blob/main"
DOCUMENTS = {"README.md": "index.html", "examples/README.md": "guide.html"}
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: auto; padding: 1rem }}
table {{ border-collapse: collapse; display: block; overflow-x: auto }}
td, th {{ border: 1px solid #ccc; padding: .2rem .5rem; text-align: left }}
pre {{ background: #f5f5f5; padding: .5rem; overflow-x: auto }}
img {{ max-width: 100% }}
</style>
</head>
<body>
<nav>{links}</nav>
{body}
</body>
</html>
"""


def build(folder: Path) -> list[str]:
    """Write all pages to a folder, and return the modules that have one. pdoc must not warn."""
    libraries = "torch", "jax", "flax", "equinox"
    modules = ["onedsl", *(f"onedsl.{n}" for n in libraries if importlib.util.find_spec(n))]
    templates = ROOT / ".ci" / "pdoc"
    command = [sys.executable, "-W", "error", "-m", "pdoc", "-t", templates]
    with tempfile.TemporaryDirectory() as empty:  # where pdoc finds the installed onedsl
        subprocess.run([*command, "-o", folder.resolve(), *modules], cwd=empty, check=True)
    modules += ["onedsl.graph", "onedsl.testing"]
    pages = {"README": "index.html", "Guide": "guide.html"}
    pages |= {module: f"{module.replace('.', '/')}.html" for module in modules}
    links = " · ".join(f'<a href="{page}">{name}</a>' for name, page in pages.items())
    for document, page in DOCUMENTS.items():
        source = (ROOT / document).read_text(encoding="utf-8")
        extras = ["fenced-code-blocks", "header-ids", "tables"]
        body = re.sub(
            r'href="(?!https?:|#)([^"#]+)(#[^"]*)?"',
            lambda link, document=document: f'href="{address(document, link[1], link[2] or "")}"',
            markdown2.markdown(source, extras=extras),
        )
        title = "onedsl" if page == "index.html" else "onedsl: guide"
        (folder / page).write_text(PAGE.format(title=title, links=links, body=body), "utf-8")
    return modules


def address(document: str, path: str, anchor: str) -> str:
    """Return the address of what a document links to: a page of the site, or a source file."""
    target = (ROOT / document).parent.joinpath(path).resolve().relative_to(ROOT).as_posix()
    return DOCUMENTS.get(target, f"{SOURCES}/{target}") + anchor


if __name__ == "__main__":
    build(Path(sys.argv[1]))
