"""Reductions, concatenations and putting indices in for axes: the forms that bind axes.

    sum_r exp(x[r] - m)      ->  exp(-m) * sum_r exp(x[r])
    sum_r (x[r] - sum_q x[q] / 8), r below 8  ->  0

Axes of reductions are named by nesting height, so that equal reductions are one term. An axis that
a view splits is split for good; axes that only ever occur as one mixed-radix index are joined.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.match import constants
from fuseopt.match.algebra import (
    add,
    as_product,
    exponential,
    logarithm,
    multiply,
    scale,
    split_coefficient,
)
from fuseopt.match.binders import atoms_in, axis_to_split, occur_joined
from fuseopt.match.functions import apply
from fuseopt.match.indices import (
    Atom,
    Axis,
    Index,
    Looked,
    Quotient,
    Remainder,
    along,
    axes_of,
    fixed,
    is_at_least,
    is_below,
    looked_up,
    substituted,
)
from fuseopt.match.terms import (
    Add,
    Apply,
    Exp,
    Fold,
    Literal,
    Load,
    Log,
    Mul,
    Pieces,
    Position,
    Table,
    Term,
    joint_axes,
    joint_height,
)

Mapped = Mapping[Axis, Index]

_fresh = itertools.count()


def fresh_axis(extent: Size) -> Axis:
    """Return an axis that is found nowhere else."""
    return Axis(f"t{next(_fresh)}", extent)


# --- substitution ---------------------------------------------------------------------------------


def substitute(table: Table, term: Term, mapping: Mapped) -> Term:
    """Return a term with axes replaced by indices."""
    return _Substitution(table, mapping).of(term)


class _Substitution:
    def __init__(self, table: Table, mapping: Mapped) -> None:
        self.table = table
        self.mapping = mapping
        self.done: dict[Term, Term] = {}

    def of(self, term: Term) -> Term:
        if term.axes.isdisjoint(self.mapping):
            return term
        known = self.done.get(term)
        if known is None:
            known = self.done[term] = self._rebuilt(term)
        return known

    def index(self, index: Index) -> Index:
        return substituted(index, self.mapping, self.of)

    def _rebuilt(self, term: Term) -> Term:
        table = self.table
        match term:
            case Load(source=source, where=where):
                return table.load(source, map(self.index, where))
            case Position(index=index):
                return table.position(self.index(index))
            case Fold(combine=combine, over=over, body=body):
                # The indices put in may have axes of the same names.
                own = {a: fresh_axis(a.extent) for a in over}
                apart = substitute(table, body, {a: along(b) for a, b in own.items()})
                return fold(table, combine, tuple(own.values()), self.of(apart))
            case Pieces(selector=selector, bounds=bounds, args=args):
                return pieces(table, self.index(selector), bounds, [self.of(a) for a in args])
            case _:
                return rebuild(table, term, [self.of(o) for o in term.operands])


def rebased(table: Table, term: Term, atom: Atom, factor: Size, index: Index) -> Term | None:
    """Return a term with index / factor in place of an atom of its indices.

    None where the term depends on the atom's axes in another way, or a coefficient of the atom is
    no multiple of the factor.
    """
    try:
        return _Rebasing(table, atom, factor, index).of(term)
    except _NotAFunctionError:
        return None


class _NotAFunctionError(Exception):
    """The term is not a function of the atom alone."""


class _Rebasing(_Substitution):
    def __init__(self, table: Table, atom: Atom, factor: Size, index: Index) -> None:
        super().__init__(table, dict.fromkeys(axes_of(atom), Index()))
        self.atom = atom
        self.factor = factor
        self.by = index

    def index(self, index: Index) -> Index:
        result = Index(index.const)
        for atom, coefficient in index.terms:
            if atom == self.atom:
                times = dims.divide(coefficient, self.factor)
                if times is None:
                    raise _NotAFunctionError
                result = result + self.by * times
            elif axes_of(atom).isdisjoint(self.mapping):
                result = result + Index(0, ((atom, coefficient),))
            elif isinstance(atom, Looked):
                moved = looked_up(self.of(atom.value), atom.extent)
                result = result + moved * coefficient
            else:
                raise _NotAFunctionError
        return result


def rebuild(table: Table, term: Term, operands: Sequence[Term]) -> Term:
    """Return a term of algebra with other operands."""
    match term:
        case Add(const=const, parts=parts):
            coefficients = [c for _, c in parts]
            return add(table, const, zip(operands, coefficients, strict=True))
        case Mul(coefficient=coefficient, factors=factors):
            powers = [p for _, p in factors]
            return multiply(table, coefficient, zip(operands, powers, strict=True))
        case Exp():
            return exponential(table, operands[0])
        case Log():
            return logarithm(table, operands[0])
        case Apply(name=name):
            return apply(table, name, operands)
        case _:
            raise AssertionError(f"{type(term).__name__} is not rebuilt from operands alone")


def opened(table: Table, load: Load) -> Term | None:
    """Return what the value of a shared source is at the index of a load, None for others."""
    definition = table.definitions.get(load.source)
    if definition is None:
        return None
    key = (substitute, load)
    known = table.made.get(key)
    if known is None:
        mapping = dict(zip(load.source.params, load.where, strict=True))
        known = table.made[key] = substitute(table, definition, mapping)
    return known


# --- reductions -----------------------------------------------------------------------------------


def fold(table: Table, combine: str, over: Sequence[Axis], body: Term) -> Term:
    """Return a reduction of the body over axes that occur nowhere outside it."""
    over = tuple(a for a in over if a.extent != 1)
    idle = [a for a in over if a not in body.axes]
    over = tuple(a for a in over if a in body.axes)
    if combine == "sum":
        return _summed(table, over, body, dims.product(a.extent for a in idle))
    if combine in ("any", "all", "max", "min", "max_number") and not over:
        return body
    if idle and combine not in ("any", "all", "max", "min", "max_number"):
        over = (*over, *idle)
    return _fold(table, "max" if combine == "max_number" else combine, over, body)


def _summed(table: Table, over: tuple[Axis, ...], body: Term, repeats: Size) -> Term:
    times = constants.of_size(repeats)
    if not over:
        return scale(table, times, body)
    outside, body = _without_idle_exponent(table, over, body)
    coefficient, inner = split_coefficient(table, body)
    if isinstance(inner, Fold) and inner.combine == "sum":
        # Each axis is summed over once: the mean of means is a mean.
        own = {a: fresh_axis(a.extent) for a in inner.over}
        apart = substitute(table, inner.body, {a: along(b) for a, b in own.items()})
        inner = fold(table, "sum", (*over, *own.values()), apart)
        return multiply(table, constants.times(times, coefficient), [outside, (inner, 1.0)])
    if _cancels(table, over, body):
        return table.literal(0.0)
    return multiply(table, times, [outside, (_fold(table, "sum", over, body), 1.0)])


def _without_idle_exponent(
    table: Table, over: tuple[Axis, ...], body: Term
) -> tuple[tuple[Term, float], Term]:
    """Split exp(a + m) in a factor outside the sum, exp(m), and the rest."""
    coefficient, factors = as_product(body)
    for base, _ in factors:
        if not isinstance(base, Exp) or not isinstance(base.exponent, Add):
            continue
        parts = base.exponent.parts
        idle = [(t, c) for t, c in parts if t.axes.isdisjoint(over)]
        if not idle:
            continue
        kept = [(t, c) for t, c in parts if not t.axes.isdisjoint(over)]
        inside = exponential(table, add(table, base.exponent.const, kept))
        others = [(t, p) for t, p in factors if t is not base]
        outside = exponential(table, add(table, 0.0, idle))
        return (outside, 1.0), multiply(table, coefficient, [*others, (inside, 1.0)])
    return (table.literal(1.0), 1.0), body


def _cancels(table: Table, over: tuple[Axis, ...], body: Term) -> bool:
    """Whether a sum of distances from a mean is zero."""
    spread = opened(table, body) if isinstance(body, Load) else body
    if not isinstance(spread, Add) or not constants.is_zero(spread.const):
        return False
    if not any(_is_total(table, t) for t, _ in spread.parts):
        return False
    count = constants.of_size(dims.product(a.extent for a in over))
    total: list[tuple[Term, constants.Constant]] = []
    for term, coefficient in spread.parts:
        if term.axes.isdisjoint(over):
            total.append((term, constants.times(count, coefficient)))
        else:
            total.append((_fold(table, "sum", over, term), coefficient))
    left = add(table, 0.0, [(_opened_total(table, t), c) for t, c in total])
    return isinstance(left, Literal) and constants.is_zero(left.value)


def _is_total(table: Table, term: Term) -> bool:
    return isinstance(split_coefficient(table, _opened_total(table, term))[1], Fold)


def _opened_total(table: Table, term: Term) -> Term:
    """The sum that a term is, also where it is shared and scaled to a mean."""
    shown = opened(table, term) if isinstance(term, Load) else None
    return term if shown is None else shown


def _fold(table: Table, combine: str, over: tuple[Axis, ...], body: Term) -> Term:
    over, body = _split_axes(table, over, body)
    over, body = _joined_axes(table, over, body)
    height = body.height + 1
    named = _named(over, height)
    around = body.axes - frozenset(over)
    while not around.isdisjoint(named):  # taken by a reduction around this one
        height += 1
        named = _named(over, height)
    if named != over:
        body = substitute(table, body, {a: along(b) for a, b in zip(over, named, strict=True)})
    return table.make(Fold, around, height, combine, named, body)


def _named(over: Sequence[Axis], height: int) -> tuple[Axis, ...]:
    return tuple(Axis(f"r{height}_{n}", a.extent) for n, a in enumerate(over))


def _split_axes(table: Table, over: tuple[Axis, ...], body: Term) -> tuple[tuple[Axis, ...], Term]:
    """Split an axis r that occurs as r // c or r % c in an outer axis and an inner one."""
    while True:
        request = axis_to_split(over, body)
        if request is None:
            return over, body
        axis, inner = request
        count = dims.divide(axis.extent, inner)
        assert count is not None
        outer, rest = fresh_axis(count), fresh_axis(inner)
        body = substitute(table, body, {axis: along(outer) * inner + along(rest)})
        place = over.index(axis)
        over = (*over[:place], outer, rest, *over[place + 1 :])


def _joined_axes(table: Table, over: tuple[Axis, ...], body: Term) -> tuple[tuple[Axis, ...], Term]:
    """Join neighbours a and b that occur only as a * extent(b) + b."""
    place = 0
    while place + 1 < len(over):
        outer, inner = over[place : place + 2]
        if not occur_joined(body, outer, inner):
            place += 1
            continue
        whole = fresh_axis(dims.multiply(outer.extent, inner.extent))
        # With a = 0 and b = whole, a * extent(b) + b is `whole`; its range is taken from there.
        body = substitute(table, body, {outer: Index(), inner: along(whole)})
        over = (*over[:place], whole, *over[place + 2 :])
    return over, body


# --- concatenation --------------------------------------------------------------------------------


def pieces(table: Table, selector: Index, bounds: Sequence[Size], args: Sequence[Term]) -> Term:
    """Return args[j] where bounds[j - 1] <= selector < bounds[j].

    The pieces are given at the index of the whole, not at their own.
    """
    if len(selector.terms) == 1 and selector.const == 0:
        atom, coefficient = selector.terms[0]
        if isinstance(atom, Quotient) and coefficient == 1:
            wider = [dims.multiply(b, atom.divisor) for b in bounds]
            return pieces(table, atom.index, wider, args)
    axis = selector.single_axis
    start: Size = 0
    found: list[Term] = []
    for bound, arg in zip(bounds, args, strict=True):
        if is_at_least(selector, start) and is_below(selector, bound):
            return arg
        found.append(arg if axis is None else _in_range(table, arg, axis, start, bound))
        start = bound
    args = found
    if all(a is args[0] for a in args):
        return args[0]
    axes = joint_axes(args) | selector.axes
    height = joint_height(args)
    return table.make(Pieces, axes, height, selector, tuple(bounds), tuple(args))


def _in_range(table: Table, arg: Term, axis: Axis, start: Size, bound: Size) -> Term:
    """Simplify divisions of an axis by what is known of its range."""
    divided = (
        isinstance(atom, (Quotient, Remainder)) and axis in atom.index.axes
        for atom in atoms_in(arg)
    )
    if not any(divided):
        return arg
    inside = fresh_axis(dims.add(bound, dims.multiply(start, -1)))
    moved = substitute(table, arg, {axis: along(inside) + fixed(start)})
    return substitute(table, moved, {inside: along(axis) - fixed(start)})
