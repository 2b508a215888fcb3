"""fuseopt fuses the memory-bound chains of PyTorch models into checked Triton kernels."""

from typing import TYPE_CHECKING, Any

from fuseopt.errors import FuseOptError
from fuseopt.events import Log
from fuseopt.report.build import Report

if TYPE_CHECKING:
    from fuseopt.api import optimize
    from fuseopt.checking import check

__all__ = ["FuseOptError", "Log", "Report", "__version__", "check", "optimize"]

__version__ = "0.1.0"

# They import torch, which takes seconds; `fuseopt --help` does without.
_LATE = {"optimize": "fuseopt.api", "check": "fuseopt.checking"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_LATE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
