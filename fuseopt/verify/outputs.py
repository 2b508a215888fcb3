"""Judging all results of a kernel next to those of the operations it replaces.

One run shows one sample of the original's errors, and of a result that cancels to rounding errors
not even that: sums of the same numbers in two orders give two such results, and float64 is its own
truth. Where a result fails, the original runs again on inputs moved by their last digits. Its
errors there are its own too, and what the truth changes by is an error that the result has whatever
computes it.
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
            again = [(e[number], t[number]) for e, t in _runs_again(reference, inputs)]
            verdict = judge(mine, original, exact, loose=loose, again=again)
        if not verdict.passed:
            return replace(verdict, detail=f"output {number}, {verdict.detail}")
        worst = max(worst, verdict, key=lambda v: v.error)
    return worst


def _runs_again(
    reference: fx.GraphModule, inputs: Sequence[Any]
) -> Iterator[tuple[Outputs, Outputs]]:
    """Yield what a graph gives, and the truth, for inputs moved by their last digits."""
    for seed in range(MOVES):
        given = moved(inputs, seed)
        yield run_reference(reference, given), run_truth(reference, given)
