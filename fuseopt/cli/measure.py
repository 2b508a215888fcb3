"""Timing a whole call on a GPU, original and optimised in turns."""

from __future__ import annotations

from collections.abc import Callable
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

    def call(function: Callable[..., Any]) -> Any:
        return function(*target.args, **target.kwargs)

    before: list[float] = []
    after: list[float] = []
    with torch.no_grad():
        for _ in range(WARMUP):
            call(original)
            call(made.run)
        for _ in range(ROUNDS):
            before.append(_seconds(lambda: call(original)))
            after.append(_seconds(lambda: call(made.run)))  # type: ignore[arg-type]
    return Measured(torch.cuda.get_device_name(), median(before), median(after))


def _seconds(call: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
