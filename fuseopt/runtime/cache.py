"""The cache directory: kernel sources, binaries and tuning results kept between processes.

    <root>/fuseopt0.1.0-triton3.6.0-py3.12/<kind>/<key>

The directory holds code that later processes run, so it is made for its owner alone and refused
where others could write. Entries are written beside their place and moved over it, which is atomic:
a reader sees a whole entry or none, whatever number of processes and threads write. Each entry
carries its own hash; a damaged one is reported, removed and made again.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import fuseopt
from fuseopt.errors import CacheError

_MAGIC = b"fuseopt1 "
_NAME = re.compile(r"[\w.-]{1,200}")


class Store:
    """One version's part of the cache directory.

    root: the directory that `Environment.cache_dir` names; it is created when missing.
    directory: the part below it that this version of fuseopt, Triton and Python uses.
    Raises `CacheError` when the directory cannot be made, belongs to another user or can be
    written by others.
    """

    __slots__ = ("directory", "root")

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self.directory = self.root / version_tag()
        _own(self.root)
        _own(self.directory)

    def read(self, kind: str, key: str) -> bytes | None:
        """Return the entry's bytes; None when it is missing or damaged (it is then removed)."""
        path = self._path(kind, key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            warnings.warn(f"cannot read {path} ({error.strerror})", RuntimeWarning, stacklevel=2)
            return None
        head, newline, payload = data.partition(b"\n")
        if newline and head == _head(payload):
            return payload
        self._discard(path)
        return None

    def write(self, kind: str, key: str, data: bytes) -> None:
        """Put an entry in place, replacing one of the same key; `CacheError` if it cannot."""
        self._replace(self._path(kind, key), _head(data) + b"\n" + data)

    def read_json(self, kind: str, key: str) -> Any:
        """Return the value that `write_json` stored; None when it is missing or damaged."""
        data = self.read(kind, key)
        if data is None:
            return None
        try:
            return json.loads(data)
        except ValueError:
            self._discard(self._path(kind, key))
            return None

    def write_json(self, kind: str, key: str, value: Any) -> None:
        """Store a value of plain data: dicts with text keys, lists, text, numbers, None."""
        self.write(kind, key, json.dumps(value, sort_keys=True).encode())

    def place_text(self, kind: str, name: str, text: str) -> Path:
        """Return the path of a plain file with exactly this text, for tools that read files."""
        path = self._path(kind, name)
        data = text.encode()
        try:
            found = path.read_bytes()
        except OSError:
            found = None
        if found != data:
            if found is not None:
                self._discard(path)
            self._replace(path, data)
        return path

    def _path(self, kind: str, name: str) -> Path:
        assert _NAME.fullmatch(kind), kind
        assert _NAME.fullmatch(name), name
        return self.directory / kind / name

    def _replace(self, path: Path, data: bytes) -> None:
        try:
            # Made on each write: the user may clear the cache while we run.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            raise CacheError(
                f"cannot write {path} ({error.strerror}); free space there or set "
                "FUSEOPT_CACHE_DIR to another directory"
            ) from error

    def _discard(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()
        warnings.warn(
            f"cache entry {path} is damaged; it is made again", RuntimeWarning, stacklevel=3
        )


def open_store(root: Path | str) -> Store:
    """Return the store of a directory; where that cannot be used, one of this process alone.

    A warning says what is wrong: a model is better off without a cache than without its kernels.
    """
    try:
        return Store(root)
    except CacheError as error:
        warnings.warn(f"{error}; until then nothing is kept", RuntimeWarning, stacklevel=2)
        return _store_of_process()


@functools.lru_cache(1)
def _store_of_process() -> Store:
    folder = tempfile.TemporaryDirectory(prefix="fuseopt-")  # its owner's alone, as `_own` asks
    atexit.register(folder.cleanup)
    return Store(folder.name)


def version_tag() -> str:
    """Return the name of this version's directory: entries of other versions are never read."""
    try:
        import triton

        compiler = f"triton{triton.__version__}"
    except ImportError:
        compiler = "notriton"
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    return f"fuseopt{fuseopt.__version__}-{compiler}-{python}"


def _head(payload: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(payload).hexdigest().encode()


def _own(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise CacheError(
            f"cannot make the cache directory {path} ({error.strerror}); set FUSEOPT_CACHE_DIR to "
            "a directory you can write"
        ) from error
    if status.st_uid != os.geteuid():
        raise CacheError(
            f"the cache directory {path} belongs to user {status.st_uid}, not to {os.geteuid()}; "
            "it holds code, so set FUSEOPT_CACHE_DIR to a directory of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            f"the cache directory {path} can be written by others (mode "
            f"{stat.S_IMODE(status.st_mode):o}); it holds code, so run `chmod go-w {path}` or set "
            "FUSEOPT_CACHE_DIR"
        )
