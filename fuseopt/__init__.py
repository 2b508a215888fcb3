"""fuseopt fuses the memory-bound chains of PyTorch models into checked Triton kernels."""

from typing import TYPE_CHECKING, Any

from fuseopt.errors import FuseOptError
from fuseopt.events import Log
from fuseopt.report.build import Report

if TYPE_CHECKING:
    from fuseopt.api import optimize

__all__ = ["FuseOptError", "Log", "Report", "__version__", "optimize"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name != "optimize":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # It imports torch, which takes seconds; `fuseopt --help` does without.
    from fuseopt.api import optimize

    globals()["optimize"] = optimize
    return optimize


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
