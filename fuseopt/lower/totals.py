"""Which sums of a region are totals: sums over rows, of which only results of their size are made.

    dx = dy * w;  dw = (dy * x).sum(0)      with x, dy: [rows, n]

Both run over rows and columns of x; dw keeps a running sum of each column on the way, so x and dy
are read once. Gradients of broadcast operands are such sums, and so is the mean of a whole tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuseopt.ir import dims, expr
from fuseopt.ir.dims import Size
from fuseopt.ir.expr import Expr, Reduce

LONG = 256  # rows from which a sum over them is better spread over programs than left to one
LARGE = 32768  # elements from which a sum of all of them is


def totals_of(outputs: Sequence[Expr]) -> dict[int, Reduce]:
    """Return, by place of the output, the sum that is a total below it."""
    found: dict[int, Reduce] = {}
    for place, output in enumerate(outputs):
        sums = list(_first_sums(output))
        if len(sums) == 1 and _may_be_total(sums[0], output):
            found[place] = sums[0]
    return found


def pays(total: Reduce) -> bool:
    """Whether a sum is large enough to be spread over programs for its own sake."""
    if _is_whole(total):
        return _at_least(dims.product(total.arg.shape), LARGE)
    return _at_least(dims.product(total.arg.shape[d] for d in total.over), LONG)


def kept_shape(total: Reduce) -> list[Size]:
    """Return the sizes of the dimensions that a total keeps, those of size one left out."""
    return [n for n in total.shape if n != 1]


def _first_sums(output: Expr) -> Iterator[Reduce]:
    """Yield the reductions that an output is computed from without a larger value between."""
    stack = [output]
    seen: set[int] = set()
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        match e:
            case Reduce():
                yield e
            case expr.Cast() | expr.Map() | expr.Reshape():
                stack.extend(e.operands)


def _may_be_total(total: Reduce, output: Expr) -> bool:
    same = dims.same(dims.product(total.shape), dims.product(output.shape))
    nested = any(isinstance(e, Reduce) and e.combine == "sum" for e in _without(total))
    return total.combine == "sum" and same and not nested and not _is_suffix(total)


def _without(total: Reduce) -> Iterator[Expr]:
    """What lies below a sum that is itself a sum over its leading dimensions."""
    for e in expr.walk([total.arg]):
        if isinstance(e, Reduce) and not _is_suffix(e):
            yield e


def _is_suffix(total: Reduce) -> bool:
    """Whether a sum runs over the last dimensions alone, and so over columns."""
    long = [d for d in range(total.arg.rank) if total.arg.shape[d] != 1]
    over = [d for d in long if d in total.over]
    return long[len(long) - len(over) :] == over and len(over) < len(long)


def _is_whole(total: Reduce) -> bool:
    return all(n == 1 for n in total.shape)


def _at_least(count: Size, least: int) -> bool:
    return not isinstance(count, int) or count >= least
