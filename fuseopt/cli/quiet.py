"""Keeping other libraries' remarks off the terminal while they trace and build.

Their log lines at the level of errors too: torch writes the traceback of an operation that fails on
tensors without data, then raises what we report in one line or get around.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and log lines for the length of the body."""
    previous = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
