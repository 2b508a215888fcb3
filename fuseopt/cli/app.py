"""The command line as a whole, and how it ends.

Exit codes: 0; 1 where a check fails; 2 for an input or option that is not accepted. Errors are one
line on standard error.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

import fuseopt
from fuseopt.cli.commands import COMMANDS
from fuseopt.cli.output import complain, show
from fuseopt.errors import FuseOptError, KernelError, VerificationError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
TRACEBACK = "--traceback"

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        show(Text(f"fuseopt {fuseopt.__version__}"))
        raise typer.Exit


@app.callback()
def fuseopt_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option(TRACEBACK, help="Show where an error comes from.")
    ] = False,
) -> None:
    """Fuse the memory-bound chains of PyTorch models into checked Triton kernels."""


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    given = list(sys.argv[1:] if args is None else args)
    try:
        result = app([a for a in given if a != TRACEBACK], "fuseopt", standalone_mode=False)
    except KeyboardInterrupt:
        result = INTERRUPTED
    except Exception as error:
        if TRACEBACK in given:
            traceback.print_exception(error)
        complain(_message(error))
        return _code(error)
    if result == INTERRUPTED:  # which some versions of typer return and others raise
        complain("interrupted")
    return result if isinstance(result, int) else 0


def _message(error: Exception) -> str:
    # The command line parser's own errors have no common class in all versions of typer.
    if hasattr(error, "format_message"):
        return str(error.format_message())
    if isinstance(error, FuseOptError):
        return str(error)
    kind = type(error).__name__
    return f"internal error: {kind}: {error} (fuseopt {TRACEBACK} ... shows where)"


def _code(error: Exception) -> int:
    if isinstance(error, (VerificationError, KernelError)):
        return FAILED
    is_usage = isinstance(error, FuseOptError) or hasattr(error, "format_message")
    return USAGE if is_usage else FAILED
