"""What a user can set: `optimize` arguments, backend options and FUSEOPT_ variables."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fuseopt.errors import UsageError

MODES = ("default", "reduce-overhead")
NUMERICS = ("fp32", "eager")


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one `optimize` call, checked when they are made.

    mode: "default", or "reduce-overhead" to replay each compiled graph as a CUDA graph.
    numerics: "fp32" keeps intermediates in float32; "eager" rounds where the original rounded.
    verify: check every distinct replacement against the operations it replaces.
    strict: raise where a replacement fails its check instead of rolling it back.
    dynamic: as in `torch.compile`: None decides per input, True and False force.
    rules: rules used beside the registered ones: Rule classes or (pattern, replacement) pairs.
    """

    mode: str = "default"
    numerics: str = "fp32"
    verify: bool = True
    strict: bool = False
    dynamic: bool | None = None
    rules: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, MODES)
        _one_of("numerics", self.numerics, NUMERICS)
        _one_of("verify", self.verify, (True, False))
        _one_of("strict", self.strict, (True, False))
        _one_of("dynamic", self.dynamic, (None, True, False))
        if not isinstance(self.rules, tuple):
            raise UsageError(
                f"rules must be a list or tuple of rules, not {type(self.rules).__name__}"
            )

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Config:
        """Build a configuration from keyword options; an unknown name is an error."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                raise UsageError(f"unknown option {name!r}{_suggest(name, known)}")
        given = dict(options)
        if given.get("rules") is None:
            given.pop("rules", None)
        elif isinstance(given["rules"], (list, tuple)):
            given["rules"] = tuple(given["rules"])
        return cls(**given)

    def with_options(self, **options: Any) -> Config:
        """Return this configuration with some settings changed."""
        return replace(self, **options)


@dataclass(frozen=True, slots=True)
class Environment:
    """The FUSEOPT_ environment variables, read once per compilation.

    interpret: FUSEOPT_INTERPRET=1 runs kernels on CPU tensors through Triton's interpreter.
    cache_dir: FUSEOPT_CACHE_DIR, by default `~/.cache/fuseopt` (or below XDG_CACHE_HOME).
    jobs: FUSEOPT_JOBS, how many kernels are compiled at a time; by default the number of CPUs.
    tune: FUSEOPT_TUNE=0 takes the first schedule instead of timing the candidates on the device.
    """

    interpret: bool = False
    cache_dir: Path = Path()
    jobs: int = 1
    tune: bool = True


_VARIABLES = ("FUSEOPT_INTERPRET", "FUSEOPT_CACHE_DIR", "FUSEOPT_JOBS", "FUSEOPT_TUNE")


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read the FUSEOPT_ variables; an unknown one or a bad value is a `UsageError`."""
    environ = os.environ if environ is None else environ
    for name in environ:
        if name.startswith("FUSEOPT_") and name not in _VARIABLES:
            raise UsageError(
                f"unknown environment variable {name}{_suggest(name, _VARIABLES)}; unset it"
            )
    return Environment(
        interpret=_flag(environ, "FUSEOPT_INTERPRET", default=False),
        cache_dir=_cache_dir(environ),
        jobs=_count(environ, "FUSEOPT_JOBS", default=os.cpu_count() or 1),
        tune=_flag(environ, "FUSEOPT_TUNE", default=True),
    )


def _cache_dir(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or "~/.cache"
    given = environ.get("FUSEOPT_CACHE_DIR") or f"{base}/fuseopt"
    try:
        return Path(given).expanduser()
    except RuntimeError:  # a container's user may have no home
        raise UsageError(
            f"{given} has no meaning here: there is no such home directory; set FUSEOPT_CACHE_DIR "
            "to a directory you can write"
        ) from None


def _flag(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environ.get(name, "")
    if text not in ("", "0", "1"):
        raise UsageError(f"{name}={text!r} is not one of 0, 1")
    return default if text == "" else text == "1"


def _count(environ: Mapping[str, str], name: str, *, default: int) -> int:
    text = environ.get(name, "")
    if text and not re.fullmatch("0*[1-9][0-9]*", text):
        raise UsageError(f"{name}={text!r} is not a positive whole number")
    return int(text) if text else default


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if not any(value is a or (isinstance(a, str) and value == a) for a in allowed):
        listed = ", ".join(repr(a) for a in allowed)
        raise UsageError(f"{name}={value!r} is not one of {listed}")


def _suggest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
