"""`fuseopt rules`, and loading the files of `--rules`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def load_rules(paths: Sequence[str]) -> tuple[Any, ...]:
    """Return the rules of the files given by `--rules`."""
    if not paths:
        return ()
    raise NotImplementedError


def run_rules(paths: Sequence[str]) -> int:
    """List the rules."""
    return 0
