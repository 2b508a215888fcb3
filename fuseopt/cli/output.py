"""Where commands print: results to standard output, errors and progress to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from fuseopt.errors import UsageError
from fuseopt.events import Event, GraphCaptured, KernelCompiled, Log, Planned, Timed, Verified
from fuseopt.report.text import plain_text


def show(*parts: RenderableType) -> None:
    """Print to standard output: in colour on a terminal, elsewhere as plain text of one width."""
    if is_terminal():
        console = Console(highlight=False)
        for part in parts:
            console.print(part)
        return
    write_out("".join(plain_text(part) + "\n" for part in parts))


def is_terminal() -> bool:
    """Return whether standard output is a terminal; it may also be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def write_out(text: str) -> None:
    """Write text to standard output as it is.

    Where nobody reads on (`| head`), the rest is dropped and the command ends as it would have.
    """
    if sys.stdout is None:
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is held back as well
        raise UsageError(f"standard output cannot be written: {error.strerror}") from None


def complain(message: str) -> None:
    """Print one line to standard error."""
    line = " ".join(message.split())
    if line and sys.stderr is not None:
        sys.stderr.write(f"fuseopt: {line}\n")


def check_writable(path: str) -> Path:
    """Return a path that can be written to; `UsageError` before any work is done otherwise."""
    if not path:
        raise UsageError("the file to write has an empty name")
    target = Path(path)
    parent = target.parent
    if target.is_dir():
        raise UsageError(f"{path} is a folder, not a file to write")
    if not parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {parent}")
    if not os.access(target if target.exists() else parent, os.W_OK):
        raise UsageError(f"{path} cannot be written: permission denied")
    return target


def write_text(path: Path, text: str) -> None:
    """Write a file; `UsageError` where that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def progress(log: Log, what: str) -> Iterator[None]:
    """Show on a terminal how far the steps that a log records have come."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        listener = _Listener(bar, bar.add_task(f"loading {what}", total=None, count=""))
        log.listeners.append(listener)
        try:
            yield
        finally:
            log.listeners.remove(listener)


@dataclass(slots=True)
class _Listener:
    """Moves a progress bar as events are recorded."""

    bar: Progress
    task: TaskID
    done: int = 0
    total: int | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case Timed("capture"):
                self._start("normalising")
            case GraphCaptured():
                self._start(f"graph {event.graph}: growing regions")
            case Planned():
                text = f"graph {event.graph}: building and checking kernels"
                self._start(text, event.kernels)
            case Verified() | KernelCompiled():
                self.done += 1
                count = f"{self.done}/{self.total}" if self.total else str(self.done)
                self.bar.update(self.task, completed=self.done, count=count)
            case Timed("verify"):
                self._start("compiling")

    def _start(self, text: str, total: int | None = None) -> None:
        self.done, self.total = 0, total
        self.bar.update(self.task, description=text, total=total, completed=0, count="")
