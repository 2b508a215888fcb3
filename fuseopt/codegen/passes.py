"""Which reductions of a looped row share a pass over it.

Reductions that do not depend on each other share one. Two pairs that do depend are combined on the
way: a maximum with the sum of exponentials below it (online softmax, Milakov & Gimelshein 2018),
and a sum with the sum of squared distances from its mean (Chan, Golub & LeVeque 1983).
"""

from __future__ import annotations

from dataclasses import dataclass

from fuseopt.ir.kernel import LoopKernel
from fuseopt.ir.values import Apply, Fold, Number, Value, walk


@dataclass(frozen=True, slots=True)
class OnlineSoftmax:
    """`maximum` = max(scores) and `total` = sum(exp(scores - maximum))."""

    maximum: Fold
    total: Fold
    scores: Value


@dataclass(frozen=True, slots=True)
class Moments:
    """`total` = sum(x) and `away` = sum((x - total / count) ** 2)."""

    total: Fold
    away: Fold
    sample: Value
    count: Number


Pair = OnlineSoftmax | Moments


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over the row: reductions on their own, and pairs combined on the way."""

    single: tuple[Fold, ...]
    pairs: tuple[Pair, ...]


def plan_passes(kernel: LoopKernel) -> list[Pass]:
    """Return the passes over the row, in order, after which every reduction is known."""
    folds = list(kernel.folds())
    pairs = {id(p.total if isinstance(p, OnlineSoftmax) else p.away): p for p in _pairs(folds)}
    firsts = {id(_first(p)): p for p in pairs.values()}
    depth: dict[int, int] = {}
    for fold in folds:
        pair = pairs.get(id(fold))
        if pair is not None:
            depth[id(fold)] = depth[id(_first(pair))]
        else:
            below = [depth[id(v)] for v in walk([fold.arg]) if isinstance(v, Fold)]
            depth[id(fold)] = 1 + max(below, default=0)
    passes = []
    for level in range(1, max(depth.values(), default=0) + 1):
        here = [f for f in folds if depth[id(f)] == level]
        single = tuple(f for f in here if id(f) not in pairs and id(f) not in firsts)
        passes.append(Pass(single, tuple(pairs[id(f)] for f in here if id(f) in pairs)))
    return passes


def _first(pair: Pair) -> Fold:
    return pair.maximum if isinstance(pair, OnlineSoftmax) else pair.total


def _pairs(folds: list[Fold]) -> list[Pair]:
    found: list[Pair] = []
    taken: set[int] = set()
    for fold in folds:
        pair = _softmax_pair(fold) or _moments_pair(fold)
        if pair is not None and id(_first(pair)) not in taken:
            taken.add(id(_first(pair)))
            found.append(pair)
    return found


def _softmax_pair(fold: Fold) -> OnlineSoftmax | None:
    match fold:
        case Fold(
            combine="sum",
            arg=Apply(
                primitive="exp",
                args=(Apply(primitive="sub", args=(scores, Fold() as maximum)),),
            ),
        ) if maximum.combine in ("max", "max_number") and maximum.arg is scores:
            return OnlineSoftmax(maximum, fold, scores)
    return None


def _moments_pair(fold: Fold) -> Moments | None:
    match fold:
        case Fold(
            combine="sum",
            arg=Apply(
                primitive="mul",
                args=(
                    Apply(
                        primitive="sub",
                        args=(
                            sample,
                            Apply(primitive="div", args=(Fold() as total, Number() as count)),
                        ),
                    ) as left,
                    right,
                ),
            ),
        ) if left is right and total.combine == "sum" and total.arg is sample:
            return Moments(total, fold, sample, count)
    return None
