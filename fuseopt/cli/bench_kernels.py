"""`fuseopt bench --kernels`: memory-bound functions on a GPU, row by row, next to others."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.table import Table
from rich.text import Text

from fuseopt.bench.kernels import BenchResult, RowResult, bench_rows
from fuseopt.bench.providers import PROVIDERS
from fuseopt.bench.rows import Row, backward_rows, target_rows, unseen_rows
from fuseopt.cli.output import check_writable, show, write_text
from fuseopt.cli.targets import parse_dtype
from fuseopt.errors import UsageError

NO_DEVICE = "fuseopt bench needs a CUDA device, and there is none here"
SETS: dict[str, Callable[[], list[Row]]] = {
    "target": target_rows,
    "target-backward": lambda: backward_rows(target_rows()),
    "unseen": unseen_rows,
    "unseen-backward": lambda: backward_rows(unseen_rows()),
}


class Jsonable(Protocol):
    """A result that becomes JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be measured: the set of rows, a pattern on their names, providers, dtype."""

    kernels: str
    rows: str | None
    providers: Sequence[str]
    dtype: str
    budget: float | None
    json_file: str | None


def run_bench_kernels(wanted: Wanted) -> int:
    """Run a benchmark of kernels and print its table; 0, or a `UsageError`."""
    path = check_writable(wanted.json_file) if wanted.json_file else None
    providers = _providers(wanted.providers)
    rows = _rows(wanted.kernels, wanted.rows)
    if not torch.cuda.is_available():
        raise UsageError(NO_DEVICE)
    result = bench_rows(
        rows,
        providers,
        parse_dtype(wanted.dtype),
        budget=math.inf if wanted.budget is None else wanted.budget,
        progress=lambda row: show(Text(_line(row))),
    )
    show(table(result), Text(summary(result)))
    if path is not None:
        write_json(path, result)
    return 0


def write_json(path: Path, result: Jsonable) -> None:
    """Write a result as JSON."""
    write_text(path, json.dumps(result.to_dict(), indent=1) + "\n")


def table(result: BenchResult) -> Table:
    """Return the rows as a table: microseconds and share of the copy rate of each provider."""
    made = Table(
        title=f"{result.environment['device']}, {result.dtype}, copy rate "
        f"{result.copy_rate / 1e9:,.0f} GB/s",
        title_justify="left",
    )
    made.add_column("row")
    names = list(result.rows[0].providers) if result.rows else []
    for name in names:
        made.add_column(f"{name} us (%)", justify="right")
    for row in result.rows:
        made.add_row(row.name, *(_cell(row, name) for name in names))
    return made


def summary(result: BenchResult) -> str:
    """Return geometric means of the shares, and how fuseopt stands against the best other."""
    lines = []
    names = list(result.rows[0].providers) if result.rows else []
    for name in names:
        shares = [r.providers[name].share for r in result.rows if r.providers[name].share > 0]
        if shares:
            mean = math.exp(sum(map(math.log, shares)) / len(shares))
            lines.append(f"{name}: {len(shares)} rows, geometric mean {mean:.1%} of the copy rate")
    behind = [r.name for r in result.rows if _lag(r) > 1.03]
    lines.append(
        f"fuseopt more than 3% behind the best other on {len(behind)} rows: "
        + (", ".join(behind) or "none")
    )
    return "\n".join(lines)


def _lag(row: RowResult) -> float:
    """Our time over the best other's; zero where one is missing."""
    ours = row.providers.get("fuseopt")
    others = [t.seconds for n, t in row.providers.items() if n != "fuseopt"]
    best = min(others, default=math.inf)
    return ours.seconds / best if ours is not None and math.isfinite(best) else 0.0


def _cell(row: RowResult, name: str) -> str:
    timing = row.providers[name]
    if not math.isfinite(timing.seconds):
        return "-"
    return f"{timing.seconds * 1e6:,.0f} ({timing.share:.0%})"


def _line(row: RowResult) -> str:
    return f"{row.name:<34}" + "  ".join(f"{n} {_cell(row, n)}" for n in row.providers)


def _providers(given: Sequence[str]) -> list[str]:
    for name in given:
        if name not in PROVIDERS:
            raise UsageError(f"--providers {name!r} is not one of {', '.join(PROVIDERS)}")
    return list(given) or ["eager", "fuseopt", "inductor"]


def _rows(kernels: str, pattern: str | None) -> list[Row]:
    if kernels not in SETS:
        raise UsageError(f"--kernels {kernels!r} is not one of {', '.join(SETS)}")
    try:
        wanted = re.compile(pattern or "")
    except re.error as error:
        raise UsageError(f"--rows {pattern!r} is not a regular expression: {error}") from None
    rows = [row for row in SETS[kernels]() if wanted.search(row.name)]
    if not rows:
        raise UsageError(f"--rows {pattern!r} matches no row of the {kernels} set")
    return rows
