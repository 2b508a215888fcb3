"""`fuseopt bench TARGET... --train`: training steps on a GPU, next to PyTorch and its compiler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from fuseopt.bench.training import StepTiming, TrainingResult, bench_training, train_model
from fuseopt.cli.bench_models import Wanted, measure_each
from fuseopt.cli.output import show
from fuseopt.cli.quiet import quiet
from fuseopt.cli.targets import Target
from fuseopt.report.shorten import byte_size, duration


def run_bench_training(wanted: Wanted) -> int:
    """Time training steps and print a table; 1 where a region of fuseopt's was rolled back."""

    def measure(name: str, target: Target, providers: Sequence[str]) -> TrainingResult:
        model: Any = target.model
        with quiet():
            return train_model(name, target.about, model, target.args, target.kwargs, providers)

    results = measure_each(wanted, measure, bench_training)
    show(table(results))
    for result in results:
        show(*(Text(f"{result.name}: {p}") for p in result.problems))
    return 1 if any("disagrees" in p for r in results for p in r.problems) else 0


def table(results: Sequence[TrainingResult]) -> Table:
    """Return the models as a table: a step, its kernels and memory, the first step, the loss."""
    made = Table(title="one training step", title_justify="left")
    for name in ("model", "", "step", "kernels", "peak memory", "first step", "last loss"):
        made.add_column(name, justify="left" if name in ("model", "") else "right")
    for result in results:
        for number, (provider, timing) in enumerate(result.providers.items()):
            made.add_row(result.name if number == 0 else "", provider, *_cells(timing))
        if result.other_seed:
            last = f"{result.other_seed[-1]:.4f}"
            made.add_row("", "eager, another seed", "", "", "", "", last)
    return made


def _cells(timing: StepTiming) -> tuple[str, ...]:
    if not math.isfinite(timing.seconds):
        return (timing.note or "-", "", "", "", "")
    return (
        duration(timing.seconds),
        str(timing.kernels),
        byte_size(timing.peak_bytes),
        duration(timing.first_step),
        f"{timing.losses[-1]:.4f}",
    )
