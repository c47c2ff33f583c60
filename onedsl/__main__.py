"""The program ``onedsl``, or ``python -m onedsl``: the command line, an optional extra."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the process's arguments; return the exit status."""
    missing = [name for name in ("click", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"onedsl's command line needs {' and '.join(missing)}: pip install 'onedsl[cli]'",
            file=sys.stderr,
        )
        return 2
    from . import cli

    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(main())
