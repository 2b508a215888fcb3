"""`fuseopt bench TARGET... --train`: training steps on a GPU, next to PyTorch and its compiler."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from rich.table import Table
from rich.text import Text
from torch import nn

from fuseopt.bench.models import PROVIDERS
from fuseopt.bench.training import StepTiming, TrainingResult, bench_training, train_model
from fuseopt.cli.bench_kernels import NO_DEVICE, write_json
from fuseopt.cli.bench_models import Wanted
from fuseopt.cli.options import Options
from fuseopt.cli.output import check_writable, show
from fuseopt.cli.quiet import quiet
from fuseopt.cli.targets import load_target, parse_choices
from fuseopt.errors import UsageError
from fuseopt.report.shorten import byte_size, duration


def run_bench_training(wanted: Wanted) -> int:
    """Time training steps and print a table; 1 where a region of fuseopt's was rolled back."""
    path = check_writable(wanted.json_file) if wanted.json_file else None
    for name in wanted.providers:
        if name not in PROVIDERS:
            raise UsageError(
                f"--providers {name!r} is not one of {', '.join(PROVIDERS)} for models"
            )
    if not torch.cuda.is_available():
        raise UsageError(NO_DEVICE)
    results: list[TrainingResult] = []
    for options in wanted.targets:
        results.append(_train(options, wanted.providers or PROVIDERS))
        torch.cuda.empty_cache()
        if path is not None:  # what is measured is kept, whatever happens to the next
            write_json(path, bench_training(results))
    show(table(results))
    for result in results:
        show(*(Text(f"{result.name}: {p}") for p in result.problems))
    return 1 if any("disagrees" in p for r in results for p in r.problems) else 0


def _train(options: Options, providers: Sequence[str]) -> TrainingResult:
    target = load_target(options.target, parse_choices(options, with_data=True))
    if not isinstance(target.model, nn.Module):
        raise UsageError(f"{options.target} is not a module; fuseopt bench TARGET times modules")
    name = options.target.rpartition(":")[2]
    with quiet():
        return train_model(name, target.about, target.model, target.args, target.kwargs, providers)


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
