"""`fuseopt env`: versions, devices, the cache and the variables, for bug reports. Never fails."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator

import torch
from rich.table import Table

import fuseopt
from fuseopt.cli.output import show
from fuseopt.config import read_environment

PACKAGES = ("triton", "transformers", "timm", "numpy", "sympy")
VARIABLES = ("FUSEOPT_", "TRITON_", "TORCHDYNAMO_", "TORCH_COMPILE", "CUDA_VISIBLE_DEVICES")


def run_env() -> int:
    """Print versions, devices, the cache directory and the variables that matter."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, read in _rows():
        grid.add_row(name, _attempt(read))
    show(grid)
    return 0


def _rows() -> Iterator[tuple[str, Callable[[], str]]]:
    yield "fuseopt", lambda: fuseopt.__version__
    yield "python", lambda: f"{platform.python_version()} on {platform.platform()}"
    yield "torch", lambda: torch.__version__
    for package in PACKAGES:
        yield package, lambda package=package: _version(package)  # type: ignore[misc]
    yield "devices", _devices
    yield "kernels", _launching
    yield "cache", _cache
    yield "settings", _settings
    yield "variables", _variables


def _attempt(read: Callable[[], str]) -> str:
    try:
        return read()
    except Exception as error:  # a broken installation is what this command is there to show
        return f"unknown ({type(error).__name__}: {' '.join(str(error).split())})"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> str:
    if not torch.cuda.is_available():
        return f"cpu, {os.cpu_count()} cores, {torch.get_num_threads()} threads; no CUDA device"
    return "\n".join(map(_gpu, range(torch.cuda.device_count())))


def _gpu(number: int) -> str:
    found = torch.cuda.get_device_properties(number)
    return (
        f"cuda:{number} {found.name}, sm_{found.major}{found.minor}, "
        f"{found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    )


def _launching() -> str:
    if torch.cuda.is_available():
        return "run on the GPU" if torch.version.hip is None else "do not run: AMD GPU"
    if read_environment().interpret:
        return "run through Triton's interpreter (FUSEOPT_INTERPRET=1)"
    return "are planned and checked, not run: no Triton device"


def _cache() -> str:
    path = read_environment().cache_dir
    if not path.exists():
        return f"{path}, not made yet"
    files = [f for f in path.rglob("*") if f.is_file()]
    size = sum(f.stat().st_size for f in files)
    access = "" if os.access(path, os.W_OK) else ", not writable"
    return f"{path}, {len(files)} files, {size / 1e6:.1f} MB{access}"


def _settings() -> str:
    read = read_environment()
    return f"interpret={read.interpret}, jobs={read.jobs}, tune={read.tune}"


def _variables() -> str:
    found = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(VARIABLES)]
    return "\n".join(found) or "none set"
