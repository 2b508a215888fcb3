"""Names of regions kept between processes, so that a warm start need not lift any pattern.

Matching takes half a second in a new process, most of it for lifting the rules' patterns, and its
outcome follows from a region's structure alone. Kept for the built-in rules: what others say may
depend on code that cannot be seen.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from fuseopt.errors import CacheError
from fuseopt.events import Reason
from fuseopt.match.name import Declined, Naming
from fuseopt.match.registry import Registry

KIND = "names"


class Entries(Protocol):
    """A store of plain data."""

    def read_json(self, kind: str, key: str) -> Any:
        """Return what was written, or None."""

    def write_json(self, kind: str, key: str, value: Any) -> None:
        """Keep a value of plain data."""


class Remembered:
    """The names that a registry gave, by the structural key of a region."""

    def __init__(self, entries: Entries, registry: Registry) -> None:
        self.entries = entries
        self.digest = _digest_of_matching() if _all_built_in(registry) else ""

    def read(self, key: str) -> Naming | None:
        """Return the name that was given to a region of this key, None where it is not known."""
        if not self.digest:
            return None
        found = self.entries.read_json(KIND, self._entry(key))
        if not isinstance(found, dict):
            return None
        declined = (Declined(**{**d, "code": Reason(d["code"])}) for d in found["declined"])
        return Naming(found["rule"], tuple(declined))

    def write(self, key: str, naming: Naming) -> None:
        """Keep the name given to a region."""
        if self.digest:
            with contextlib.suppress(CacheError):  # a full disk costs the next process a moment
                self.entries.write_json(KIND, self._entry(key), asdict(naming))

    def _entry(self, key: str) -> str:
        return f"{key}-{self.digest}"


def _all_built_in(registry: Registry) -> bool:
    return all(rule.__module__.startswith("fuseopt.patterns.") for rule in registry.rules)


@functools.cache
def _digest_of_matching() -> str:
    """A hash of the code that decides about names: rules, matcher, and the ops' definitions."""
    import fuseopt.match
    import fuseopt.ops
    import fuseopt.patterns

    made = hashlib.sha256()
    for package in (fuseopt.match, fuseopt.ops, fuseopt.patterns):
        for path in _files(package.__path__):
            made.update(path.read_bytes())
    return made.hexdigest()[:16]


def _files(folders: Iterable[str]) -> list[Path]:
    return sorted(path for folder in folders for path in Path(folder).glob("*.py"))
