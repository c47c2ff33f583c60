"""``onedsl``, or ``python -m onedsl``: the command line, which needs an extra."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Without the program's name. The default is the process's own.

    Returns
    -------
    int
        The exit status: 0 for success, 2 for a mistake of the user's, 1 for a verification that
        failed or a regression that was found.
    """
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
