"""`fuseopt bench TARGET...`: whole models on a GPU, next to PyTorch and its compiler."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from rich.table import Table
from rich.text import Text
from torch import nn

from fuseopt.bench.models import PROVIDERS, ModelResult, ModelTiming, bench_model, bench_models
from fuseopt.cli.bench_kernels import NO_DEVICE, Jsonable, write_json
from fuseopt.cli.options import Options
from fuseopt.cli.output import check_writable, show
from fuseopt.cli.quiet import quiet
from fuseopt.cli.targets import Target, load_target, parse_choices
from fuseopt.errors import UsageError
from fuseopt.report.shorten import byte_size, duration

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be measured: the models, each with its options, and the providers."""

    targets: Sequence[Options]
    providers: Sequence[str]
    json_file: str | None


def run_bench_models(wanted: Wanted) -> int:
    """Time models and print a table; 1 where fuseopt did not verify one."""

    def measure(name: str, target: Target, providers: Sequence[str]) -> ModelResult:
        model: Any = target.model
        with quiet():
            made = bench_model(name, target.about, model, target.args, target.kwargs, providers)
        show(Text(_line(made)))
        return made

    results = measure_each(wanted, measure, bench_models)
    show(table(results))
    unverified = any("fuseopt" in r.providers and not r.verified for r in results)
    return 1 if unverified else 0


def measure_each(
    wanted: Wanted,
    measure: Callable[[str, Target, Sequence[str]], Result],
    whole: Callable[[list[Result]], Jsonable],
) -> list[Result]:
    """Measure each model in turn; the file is written anew after each, as what `whole` makes.

    measure: takes a target's name, the target and the providers. Raises `UsageError`.
    """
    path = check_writable(wanted.json_file) if wanted.json_file else None
    for name in wanted.providers:
        if name not in PROVIDERS:
            raise UsageError(
                f"--providers {name!r} is not one of {', '.join(PROVIDERS)} for models"
            )
    if not torch.cuda.is_available():
        raise UsageError(NO_DEVICE)
    results: list[Result] = []
    for options in wanted.targets:
        target = load_target(options.target, parse_choices(options, with_data=True))
        if not isinstance(target.model, nn.Module):
            raise UsageError(
                f"{options.target} is not a module; fuseopt bench TARGET times modules"
            )
        name = options.target.rpartition(":")[2]
        results.append(measure(name, target, wanted.providers or PROVIDERS))
        torch.cuda.empty_cache()
        if path is not None:  # what is measured is kept, whatever happens to the next
            write_json(path, whole(results))
    return results


def table(results: Sequence[ModelResult]) -> Table:
    """Return the models as a table: a call, its kernels and memory, the first call, the error."""
    made = Table(title="one call in milliseconds", title_justify="left")
    for name in ("model", "", "one call", "kernels", "peak memory", "first call", "error"):
        made.add_column(name, justify="left" if name in ("model", "") else "right")
    for result in results:
        for number, (provider, timing) in enumerate(result.providers.items()):
            made.add_row(result.name if number == 0 else "", provider, *_cells(timing))
    return made


def _cells(timing: ModelTiming) -> tuple[str, ...]:
    if not math.isfinite(timing.seconds):
        return (timing.note or "-", "", "", "", "")
    return (
        duration(timing.seconds),
        str(timing.kernels),
        byte_size(timing.peak_bytes),
        duration(timing.first_call),
        f"{timing.error:.1e}",
    )


def _line(result: ModelResult) -> str:
    times = ", ".join(
        f"{n} {duration(t.seconds)}" if math.isfinite(t.seconds) else f"{n} {t.note}"
        for n, t in result.providers.items()
    )
    checked = "" if result.verified else ", not verified"
    return f"{result.name}: {times}{checked}" + "".join(f"\n  {p}" for p in result.problems)
