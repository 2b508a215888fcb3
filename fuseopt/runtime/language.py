"""Who may use Triton's language module: compilers together, or the interpreter alone.

Triton's interpreter replaces the functions of `triton.language` while it runs. A compilation in
another thread would see them half replaced, so compilations hold `compiling()`, any number at a
time, and an interpretation holds `interpreting()`, alone. Code of the user that compiles its own
kernels in another thread is not covered; nothing of ours can stop it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Sharing:
    """A lock with many readers or one writer; not reentrant. A waiting writer goes first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._writers_waiting = 0
        self._writing = False

    @contextmanager
    def read(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._writing and not self._writers_waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        with self._changed:
            self._writers_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
            finally:
                self._writers_waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()


_LANGUAGE = _Sharing()
compiling = _LANGUAGE.read
interpreting = _LANGUAGE.write
