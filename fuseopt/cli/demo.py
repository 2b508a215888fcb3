"""`fuseopt demo`: a small model, optimised, compared with the original, and the report."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.table import Table
from rich.text import Text
from torch import nn

from fuseopt.api import optimize
from fuseopt.bench.timing import time_calls
from fuseopt.cli.minilm import SENTENCES, find_minilm, load_minilm, similarities
from fuseopt.cli.output import complain, progress, show
from fuseopt.cli.quiet import quiet
from fuseopt.cli.small_model import small_decoder
from fuseopt.cli.targets import parse_device
from fuseopt.report.shorten import duration

AGREES = 1e-3  # largest difference of float32 results, relative to the largest result


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its inputs, and how its results are shown beside the original's."""

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    table: Callable[[torch.Tensor, torch.Tensor], Table] | None = None


def run_demo(device_name: str | None, *, interpret: bool) -> int:
    """Run the demonstration and return the exit code: 1 where results differ."""
    device = parse_device(device_name)
    if interpret:
        device = torch.device("cpu")
        os.environ["FUSEOPT_INTERPRET"] = "1"
    case = _case(device)
    show(Text(f"{case.name} on {_device_text(device)}", style="bold"))
    with torch.no_grad(), quiet():
        expected = case.model(*case.args, **case.kwargs)
        optimised = optimize(case.model)
        with progress(optimised.log, case.name):
            results = optimised(*case.args, **case.kwargs)
        if case.table is not None:
            show(Text(), case.table(expected, results))
        difference = float((results - expected).abs().max() / expected.abs().max())
        show(Text(f"\nlargest difference from the original: {difference:.1e}, relative"))
        if device.type == "cuda":
            runs = (case.model, optimised)
            before, after = time_calls([partial(f, *case.args, **case.kwargs) for f in runs])
            ratio = f"{before / after:.2f}x"
            show(Text(f"one call: {duration(before)} → {duration(after)} ({ratio})"))
    show(Text(), optimised.report)
    if device.type == "cpu" and not interpret:
        show(Text("\nfuseopt demo --interpret runs the kernels, through Triton's interpreter"))
    if difference > AGREES:
        complain(f"results differ from the original's by {difference:.1e}")
        return 1
    return 0


def _case(device: torch.device) -> Case:
    folder = find_minilm()
    if folder is None:
        model, ids = small_decoder(device)
        return Case("A Llama-style model with random weights", model, (ids,), {})
    encoder, tokens = load_minilm(folder, device)
    return Case("MiniLM sentence encoder", encoder, (), tokens, _similarity_table)


def _similarity_table(expected: torch.Tensor, results: torch.Tensor) -> Table:
    table = Table.grid(padding=(0, 3))
    table.add_column()
    for _ in range(2):
        table.add_column(justify="right")
    table.add_row(Text("similarity to the first sentence", style="dim"), "original", "fuseopt")
    rows = zip(SENTENCES, similarities(expected), similarities(results), strict=True)
    for sentence, before, after in rows:
        table.add_row(sentence, f"{before:.5f}", f"{after:.5f}")
    return table


def _device_text(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
