"""Timing whole calls on a CUDA device, in turns, from an idle device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

WARMUP = 3
ROUNDS = 21


def time_calls(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Return the median seconds of each call; each round makes every call once.

    Python's garbage collector waits meanwhile, as in `timeit`: it would walk all models in memory.
    """
    times: list[list[float]] = [[] for _ in calls]
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for number in range(WARMUP + ROUNDS):
            for call, taken in zip(calls, times, strict=True):
                seconds = _seconds(call)
                if number >= WARMUP:
                    taken.append(seconds)
    finally:
        if was_enabled:
            gc.enable()
    return [median(t) for t in times]


def _seconds(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
