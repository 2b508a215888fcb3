"""Timing a whole call on a GPU, original and optimised in turns."""

from __future__ import annotations

from typing import Any

import torch

from fuseopt.bench.timing import time_calls
from fuseopt.cli.examine import Examination
from fuseopt.errors import UsageError
from fuseopt.events import Measured


def measure(made: Examination) -> Measured:
    """Return the median time of a call as written and as optimised."""
    if made.run is None:
        raise UsageError(f"--time: {made.target.name} does not run here")
    target = made.target
    model: Any = target.model
    original = model.module() if isinstance(model, torch.export.ExportedProgram) else model
    run = made.run
    calls = [
        lambda: original(*target.args, **target.kwargs),
        lambda: run(*target.args, **target.kwargs),
    ]
    with torch.no_grad():
        before, after = time_calls(calls)
    return Measured(torch.cuda.get_device_name(), before, after)
