"""Timing rows on a CUDA device: what `fuseopt bench --kernels` measures.

All providers run a row in one process on the same inputs, in turns, with the L2 cache emptied
before each repetition; times are medians of the device's own clock. A row's share is its compulsory
bytes over its time, over the rate at which the device copies, which is measured in the same run.
First calls, which compile, are timed apart.
"""

from __future__ import annotations

import datetime
import math
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

import fuseopt
from fuseopt.bench.providers import PROVIDERS, Provider
from fuseopt.bench.rows import Draw, Row
from fuseopt.errors import FuseOptError
from fuseopt.pipeline import first_line
from fuseopt.runtime.autotune import time_candidates

SCHEMA = 1
COPY_ELEMENTS = 1 << 30  # of bfloat16: 2 GiB read, 2 GiB written
LONGEST_NOTE = 160
BUDGET = 0.06  # seconds of device time for each provider of a row


@dataclass(frozen=True, slots=True)
class Timing:
    """One provider on one row. seconds: median of a call; share: of the copy rate.

    error: largest error against float64, relative to the largest magnitude. first_call: seconds of
    the first call in this process. note: why there is no time, or what the provider did.
    """

    seconds: float = math.inf
    share: float = 0.0
    error: float = math.nan
    first_call: float = math.nan
    note: str = ""


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row: its compulsory bytes and what each provider took."""

    name: str
    bytes: int
    providers: dict[str, Timing] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """A whole run: where, when and with what, the copy rate in bytes a second, the rows."""

    environment: dict[str, str]
    dtype: str
    copy_rate: float
    rows: list[RowResult]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; infinities and NaN become None."""
        return plain({"schema": SCHEMA, **asdict(self)})


def environment() -> dict[str, str]:
    """Return the device, the versions and the date of a run."""
    import triton

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": properties.name,
        "multiprocessors": str(properties.multi_processor_count),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "fuseopt": fuseopt.__version__,
        "cuda": str(torch.version.cuda),
        "date": datetime.date.today().isoformat(),
    }


def copy_rate() -> float:
    """Return the device's copy rate: bytes read plus written, a second."""
    source = torch.randn(COPY_ELEMENTS, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    (seconds,) = time_candidates([lambda: target.copy_(source)], 0, BUDGET)
    return 2 * source.numel() * source.itemsize / seconds


def bench_rows(
    rows: Iterable[Row],
    providers: Sequence[str],
    dtype: torch.dtype,
    *,
    budget: float = math.inf,
    progress: Callable[[RowResult], None] = lambda _: None,
) -> BenchResult:
    """Time rows on the current CUDA device.

    providers: names from `PROVIDERS`; those that are not installed are left out with a note.
    budget: seconds after which no further row is started. progress: called with each result.
    """
    started = time.perf_counter()
    rate = copy_rate()
    results: list[RowResult] = []
    for row in rows:
        if time.perf_counter() - started > budget:
            break
        results.append(_bench_row(row, [PROVIDERS[p] for p in providers], dtype, rate))
        progress(results[-1])
        torch.cuda.empty_cache()
    return BenchResult(environment(), str(dtype).removeprefix("torch."), rate, results)


def _bench_row(
    row: Row, providers: Sequence[Provider], dtype: torch.dtype, rate: float
) -> RowResult:
    draw = Draw(torch.device("cuda"), dtype)
    args = row.make(draw)
    if row.backward:
        args = tuple(a.requires_grad_() if a.dtype.is_floating_point else a for a in args)
    compulsory = row.compulsory(dtype.itemsize)
    truth = _truth(row, args)
    ready: dict[str, tuple[Callable[..., Any], Timing]] = {}
    timings: dict[str, Timing] = {}
    with torch.set_grad_enabled(row.backward):
        for provider in providers:
            made = _prepare(provider, row, args, truth)
            if isinstance(made, Timing):
                timings[provider.name] = made
            else:
                ready[provider.name] = made
        calls = [call for call, _ in ready.values()]
        seconds = time_candidates(calls, 0, BUDGET) if calls else []
    for (name, (_, first)), taken in zip(ready.items(), seconds, strict=True):
        share = compulsory / taken / rate
        timings[name] = Timing(taken, share, first.error, first.first_call, first.note)
    ordered = {p.name: timings[p.name] for p in providers}
    return RowResult(row.name, compulsory, ordered)


def _call(row: Row, function: Callable[..., Any], args: Sequence[Any]) -> Callable[[], Any]:
    """Return what is timed: a call of the function, or of its gradients after one forward pass."""
    if not row.backward:
        return lambda: function(*args)
    results = [r for r in _tensors(function(*args)) if r.requires_grad]
    generator = torch.Generator(results[0].device).manual_seed(1)
    given = [
        torch.randn(r.shape, generator=generator, device=r.device).to(r.dtype) for r in results
    ]
    wanted = [a for a in args if a.requires_grad]
    return lambda: torch.autograd.grad(results, wanted, given, retain_graph=True)


def _prepare(
    provider: Provider, row: Row, args: Sequence[Any], truth: list[torch.Tensor] | None
) -> tuple[Callable[..., Any], Timing] | Timing:
    """Make a provider's function and run it once, or say why it has none.

    Returns what is to be timed, and what is known of it so far.
    """
    torch._dynamo.reset()
    try:
        function = provider.make(row)
        if function is None:
            return Timing(note="no such function")
        torch.cuda.synchronize()
        start = time.perf_counter()
        call = _call(row, function, args)
        results = call()
        torch.cuda.synchronize()
        first_call = time.perf_counter() - start
    except (RuntimeError, ImportError, TypeError, ValueError, FuseOptError) as error:
        return Timing(note=first_line(error)[:LONGEST_NOTE])
    note = provider.describe(function)
    return call, Timing(error=_error(results, truth), first_call=first_call, note=note)


def _truth(row: Row, args: Sequence[Any]) -> list[torch.Tensor] | None:
    """The row in float64 on the same inputs, or None where memory or an op forbids it."""
    largest = max(a.numel() for a in args)
    if row.random or largest * 8 * 8 > torch.cuda.mem_get_info()[0]:
        return None
    wide = [a.detach().double() if a.dtype.is_floating_point else a for a in args]
    wide = [w.requires_grad_(a.requires_grad) for w, a in zip(wide, args, strict=True)]
    try:
        with torch.set_grad_enabled(row.backward):
            return [t.detach() for t in _tensors(_call(row, row.function, wide)())]
    except (RuntimeError, NotImplementedError):
        return None


def _error(results: Any, truth: list[torch.Tensor] | None) -> float:
    if truth is None:
        return math.nan
    worst = 0.0
    for got, want in zip(_tensors(results), truth, strict=True):
        wanted = want.double()
        apart = (got.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30)
        worst = max(worst, float(apart))
    return worst


def _tensors(results: Any) -> list[torch.Tensor]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def plain(value: Any) -> Any:
    """Return a value for JSON: infinities and NaN become None."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
