"""Where commands print: results to standard output, errors and progress to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from fuseopt.errors import UsageError
from fuseopt.events import Event, GraphCaptured, KernelCompiled, Log, Planned, Timed, Verified
from fuseopt.report.text import plain_text


def show(*parts: RenderableType) -> None:
    """Print to standard output: in colour on a terminal, elsewhere as plain text of one width."""
    if sys.stdout.isatty():
        console = Console(highlight=False)
        for part in parts:
            console.print(part)
        return
    for part in parts:
        sys.stdout.write(plain_text(part) + "\n")
    sys.stdout.flush()


def complain(message: str) -> None:
    """Print one line to standard error."""
    line = " ".join(message.split())
    if line:
        sys.stderr.write(f"fuseopt: {line}\n")


def check_writable(path: str) -> Path:
    """Return a path that can be written to; `UsageError` before any work is done otherwise."""
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
    if not sys.stderr.isatty():
        yield
        return
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        listener = _Listener(bar, bar.add_task(f"loading {what}", total=None))
        log.listeners.append(listener)
        try:
            yield
        finally:
            log.listeners.remove(listener)


class _Listener:
    """Moves a progress bar as events are recorded."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self.bar = bar
        self.task = task
        self.compiled = 0

    def __call__(self, event: Event) -> None:
        match event:
            case Timed("capture"):
                self._say("normalising")
            case GraphCaptured():
                self._say(f"graph {event.graph}: growing regions")
            case Planned():
                text = f"graph {event.graph}: building and checking kernels"
                self.bar.update(self.task, description=text, total=event.kernels, completed=0)
            case Verified():
                self.bar.advance(self.task)
            case KernelCompiled():
                self.compiled += 1
                text = f"compiling for {event.target}"
                self.bar.update(self.task, description=text, completed=self.compiled)

    def _say(self, text: str) -> None:
        self.bar.update(self.task, description=text)
