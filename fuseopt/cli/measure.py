"""Timing a whole call on a GPU, original and optimised in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

from fuseopt.cli.examine import Examination
from fuseopt.errors import UsageError
from fuseopt.events import Measured

WARMUP = 3
ROUNDS = 21


def measure(made: Examination) -> Measured:
    """Return the median time of a call as written and as optimised."""
    if made.run is None:
        raise UsageError(f"--time: {made.target.name} does not run here")
    target = made.target
    model: Any = target.model
    original = model.module() if isinstance(model, torch.export.ExportedProgram) else model
    with torch.no_grad():
        before, after = time_calls(original, made.run, target.args, target.kwargs)
    return Measured(torch.cuda.get_device_name(), before, after)


def time_calls(
    original: Callable[..., Any],
    optimised: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> tuple[float, float]:
    """Return the median seconds of a call of each, on the current CUDA device."""
    calls = (lambda: original(*args, **kwargs), lambda: optimised(*args, **kwargs))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(WARMUP + ROUNDS):
        for call, found in zip(calls, times, strict=True):
            seconds = _seconds(call)
            if number >= WARMUP:
                found.append(seconds)
    return median(times[0]), median(times[1])


def _seconds(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
