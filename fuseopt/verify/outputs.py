"""Judging all results of a kernel next to those of the operations it replaces.

A result that cancels to rounding errors says nothing by itself: sums of the same numbers in two
orders give two such results, and float64, which is its own truth, shows no error of the original at
all. Only where a result fails, the original is run in float64 on inputs moved by their last digits
too: what changes by that is an error that the result has whatever computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fuseopt.verify.compare import Verdict, judge
from fuseopt.verify.truth import moved, run_reference, run_truth

MOVES = 4  # by chance one of them may change a result little
Outputs = Sequence[torch.Tensor]


def judge_outputs(
    run: Callable[[], tuple[Outputs, Sequence[torch.Tensor | None]]],
    reference: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    loose: bool = False,
) -> Verdict:
    """Return the first verdict that is not passed, or the one with the largest error.

    run: runs the kernel, and returns its results and where they were written (None: everywhere).
    reference: the operations it replaces, run on `inputs`. loose: see `judge`.
    """
    eager, truth = run_reference(reference, inputs), run_truth(reference, inputs)
    worst = Verdict(True)
    for number, (ours, written, original, exact) in enumerate(
        zip(*run(), eager, truth, strict=True)
    ):
        # What was not computed takes the original's values, and so is not judged.
        mine = ours if written is None else torch.where(written, ours, original)
        verdict = judge(mine, original, exact, loose=loose)
        if not verdict.passed and mine.is_floating_point() and mine.shape == exact.shape:
            changed = [results[number] for results in moved_truths(reference, inputs)]
            verdict = judge(mine, original, exact, loose=loose, moved=changed)
        if not verdict.passed:
            return replace(verdict, detail=f"output {number}, {verdict.detail}")
        worst = max(worst, verdict, key=lambda v: v.error)
    return worst


def moved_truths(reference: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[Outputs]:
    """Yield what a graph gives in float64 for inputs moved by their last digits."""
    for seed in range(MOVES):
        yield run_truth(reference, moved(inputs, seed))
