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
    """`total` = sum(x), `away` = sum((x - total / count) ** 2), and `drift`, where the kernel has
    it, = sum(x - total / count): the rounding error of the mean, none where means are combined."""

    total: Fold
    away: Fold
    sample: Value
    count: Number
    drift: Fold | None = None


Pair = OnlineSoftmax | Moments


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over the row: reductions on their own, and pairs combined on the way."""

    single: tuple[Fold, ...]
    pairs: tuple[Pair, ...]


def plan_passes(kernel: LoopKernel, *, paired: bool) -> list[Pass]:
    """Return the passes over the row, in order, after which every reduction is known.

    paired: look for pairs; a row that is held whole needs none.
    """
    folds = list(kernel.folds())
    pairs = _pairs(folds) if paired else []
    pair_of = {id(f): pair for pair in pairs for f in _members(pair)}
    depth: dict[int, int] = {}
    for fold in folds:
        pair = pair_of.get(id(fold))
        first = fold if pair is None else _members(pair)[0]
        if first is not fold:
            depth[id(fold)] = depth[id(first)]
        else:
            below = [depth[id(v)] for v in walk([fold.arg]) if isinstance(v, Fold)]
            depth[id(fold)] = 1 + max(below, default=0)
    passes = []
    for level in range(1, max(depth.values(), default=0) + 1):
        single = tuple(f for f in folds if depth[id(f)] == level and id(f) not in pair_of)
        together = tuple(p for p in pairs if depth[id(_members(p)[0])] == level)
        passes.append(Pass(single, together))
    return passes


def _members(pair: Pair) -> tuple[Fold, ...]:
    if isinstance(pair, OnlineSoftmax):
        return (pair.maximum, pair.total)
    return (pair.total, pair.away) if pair.drift is None else (pair.total, pair.away, pair.drift)


def _pairs(folds: list[Fold]) -> list[Pair]:
    found: list[Pair] = []
    taken: set[int] = set()
    for fold in folds:
        pair = softmax_pair(fold) or _moments_pair(fold, folds)
        if pair is not None and not taken & {id(f) for f in _members(pair)}:
            taken |= {id(f) for f in _members(pair)}
            found.append(pair)
    return found


def softmax_pair(fold: Fold) -> OnlineSoftmax | None:
    """Return the maximum and the sum where a reduction sums the exponentials below a maximum."""
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


def _moments_pair(fold: Fold, folds: list[Fold]) -> Moments | None:
    match fold:
        case Fold(combine="sum", arg=Apply(primitive="mul", args=(distance, same))) if (
            distance is same
        ):
            pass
        case _:
            return None
    match distance:
        case Apply(
            primitive="sub",
            args=(
                sample,
                Apply(primitive="div", args=(Fold(combine="sum") as total, Number() as count)),
            ),
        ) if total.arg is sample:
            drift = next((f for f in folds if f.combine == "sum" and f.arg is distance), None)
            return Moments(total, fold, sample, count, drift)
    return None
