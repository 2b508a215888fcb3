"""What a loop kernel must prove before it is printed: every access in bounds, no dtypes mixed.

A load off its guard does not happen, so a guarded index is measured where its guard holds. With x
of 8 elements and the guard 8 <= i < 16, the index i - 8 lies in [0, 8): i is bounded by the guard,
and what is left of the index, -8, by itself. An index that is read from memory is taken to be in
bounds; the printed kernel tests it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Index, bounds
from fuseopt.ir.kernel import LoopKernel, TensorParam
from fuseopt.ir.primitives import PRIMITIVES
from fuseopt.ir.values import Apply, Coordinate, Fold, Number, Value

Range = tuple[Size, Size]
Facts = tuple[tuple[Index, Range], ...]

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}


class UnprovenError(Exception):
    """An access cannot be shown to be in bounds, or a value mixes dtypes."""


def check(kernel: LoopKernel) -> None:
    """Prove a kernel's accesses; `UnprovenError` says which one cannot be."""
    for load in kernel.loads():
        _check_access("load of input", load.param, load.index, load.guard, kernel.inputs)
    for store in kernel.stores:
        _check_access("store to output", store.param, store.index, store.guard, kernel.outputs)
    for value in kernel.values():
        _check_dtypes(value)


def _check_access(
    what: str, number: int, index: Index, guard: Sequence[Value], params: Sequence[TensorParam]
) -> None:
    facts = _joined(f for g in guard for f in _facts(g))
    if not any(_inside(reach, params[number].span) for reach in _ranges(index, facts)):
        raise UnprovenError(f"{what} {number} may lie outside its {params[number].span} elements")


def _inside(reach: Range, span: Size) -> bool:
    low, high = reach
    return dims.is_nonnegative(low) and dims.is_nonnegative(dims.add(span, -dims.add(high, 1)))


def _ranges(index: Index, facts: Facts) -> Iterator[Range]:
    """Yield ranges of an index, each from another choice of the facts that bound a part of it."""
    yield bounds(index)
    for number, (known, (low, high)) in enumerate(facts):
        factor = _factor(index, known)
        if factor is None:
            continue
        rest = index + known * -factor
        ends = dims.multiply(low, factor), dims.multiply(high, factor)
        small, large = ends if dims.is_nonnegative(factor) else ends[::-1]
        for reach in _ranges(rest, facts[:number] + facts[number + 1 :]):
            yield dims.add(small, reach[0]), dims.add(large, reach[1])


def _factor(index: Index, part: Index) -> Size | None:
    """How often a part occurs in an index: the ratio of the coefficients of its first atom."""
    if part.is_constant:
        return None
    atom, coefficient = part.terms[0]
    whole = index.coefficient(atom)
    return None if whole == 0 else dims.divide(whole, coefficient)


# --- facts ---------------------------------------------------------------------------------------


def _facts(guard: Value) -> Iterator[tuple[Index, Range]]:
    """Yield what a true guard says about indices: coordinate against number."""
    if not isinstance(guard, Apply):
        return
    if guard.primitive == "and":
        for arg in guard.args:
            yield from _facts(arg)
    if guard.primitive not in _MIRRORED:
        return
    left, right = guard.args
    if isinstance(left, Coordinate) and isinstance(right, Number):
        yield left.index, _narrowed(left.index, guard.primitive, right.value)
    elif isinstance(left, Number) and isinstance(right, Coordinate):
        yield right.index, _narrowed(right.index, _MIRRORED[guard.primitive], left.value)


def _joined(facts: Iterable[tuple[Index, Range]]) -> Facts:
    """Intersect what is known about the same index."""
    known: dict[Index, Range] = {}
    for index, (low, high) in facts:
        before_low, before_high = known.get(index, (low, high))
        tighter_low = dims.is_nonnegative(dims.add(low, -before_low))
        tighter_high = dims.is_nonnegative(dims.add(before_high, -high))
        known[index] = (low if tighter_low else before_low, high if tighter_high else before_high)
    return tuple(known.items())


def _narrowed(index: Index, comparison: str, limit: Size) -> Range:
    low, high = bounds(index)
    match comparison:
        case "lt":
            return low, dims.add(limit, -1)
        case "le":
            return low, limit
        case "gt":
            return dims.add(limit, 1), high
        case "ge":
            return limit, high
    return limit, limit


# --- dtypes --------------------------------------------------------------------------------------


def _check_dtypes(value: Value) -> None:
    if isinstance(value, Fold) and value.dtype != value.arg.dtype:
        raise UnprovenError(f"{value.combine} of {value.arg.dtype} gives {value.dtype}")
    if not isinstance(value, Apply):
        return
    compared = value.args[1:] if value.primitive == "where" else value.args
    given = {a.dtype for a in compared}
    if len(given) != 1:
        names = ", ".join(str(a.dtype) for a in compared)
        raise UnprovenError(f"{value.primitive} mixes {names}")
    if not PRIMITIVES[value.primitive].gives_bool and value.dtype not in given:
        raise UnprovenError(f"{value.primitive} of {given.pop()} gives {value.dtype}")
