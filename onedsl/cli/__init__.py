"""The command-line interface: one file for each command of ``onedsl``."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

import click

from .. import __version__
from ..runtime.errors import OneDNNError, UnsupportedError
from ..runtime.text import discard, printable, replace_unencodable
from .bench import bench
from .explain import explain
from .export import export
from .info import info
from .options import UNSUPPORTED
from .run import run

__all__ = ["main"]


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Shell completion: add the line for your shell to its startup file.
  eval "$(_ONEDSL_COMPLETE=bash_source onedsl)"
  eval "$(_ONEDSL_COMPLETE=zsh_source onedsl)"
""",
)
@click.version_option(__version__, prog_name="onedsl")
def commands() -> None:
    """Batch-normalization training on CPUs: inspect, verify and benchmark onedsl and oneDNN.

    The exit status is 0 for success, 1 if a verification failed, 2 for invalid arguments,
    and 3 if oneDNN does not support the call on this CPU.
    """


for _command in (info, run, export, explain, bench):
    commands.add_command(_command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, by default of the process's arguments, and return its exit status.

    Errors about what the user passed are printed without a traceback. Other exceptions propagate.
    """
    if sys.stdout is None:  # `onedsl info >&-`
        return _fail(
            "Error: stdout must be open, got a closed file. Redirect it to /dev/null to discard it"
        )
    replace_unencodable()
    stdout = sys.stdout
    try:
        status = commands.main(argv, prog_name="onedsl", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        return _fail(shown.getvalue(), error.exit_code)
    except click.Abort:
        return 130  # the shells' exit status for Ctrl-C
    except (BrokenPipeError, SystemExit) as error:
        # The reader of a pipe, such as `head`, has closed it. rich and click exit with 1 then, and
        # click replaces stdout, but does not expect it in a shell's completion.
        is_closed = sys.stdout is not stdout or isinstance(error.__context__, BrokenPipeError)
        if isinstance(error, SystemExit) and not is_closed:
            raise
        discard(sys.stdout)
        return 0
    except (OneDNNError, ImportError, OSError, MemoryError) as error:
        status = UNSUPPORTED if isinstance(error, UnsupportedError) else 2
        return _fail(f"Error: {error or type(error).__name__}", status)
    return status or 0


def _fail(message: str, status: int = 2) -> int:
    """Print an error message and return the exit status.

    What a stream cannot take is discarded: Python would write it again, and exit with 120.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        discard(sys.stdout)
    try:
        for line in message.splitlines():
            click.echo(printable(line), err=True)
    except OSError:  # a closed pipe, or a file on a full disk
        discard(sys.stderr)
    return status
