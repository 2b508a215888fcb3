"""Index arithmetic: one form for equal indices, checked against numbers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fuseopt.ir import dims
from fuseopt.match.indices import (
    Axis,
    Index,
    Quotient,
    Remainder,
    along,
    bounds,
    fixed,
    joined,
    parted,
    quotient,
    remainder,
    substituted,
)

A, B, C = Axis("a", 3), Axis("b", 4), Axis("c", 8)


def value(index: Index, at: dict[Axis, int]) -> int:
    total = index.const
    for atom, coefficient in index.terms:
        if isinstance(atom, Axis):
            part = at[atom]
        elif isinstance(atom, Quotient):
            part = value(atom.index, at) // atom.divisor
        else:
            assert isinstance(atom, Remainder)
            part = value(atom.index, at) % atom.divisor
        total += part * coefficient
    return total


def points():
    for numbers in itertools.product(*(range(x.extent) for x in (A, B, C))):
        yield dict(zip((A, B, C), numbers, strict=True))


INDICES = st.builds(
    lambda a, b, c, k: along(A) * a + along(B) * b + along(C) * c + fixed(k),
    *(st.integers(0, 12),) * 4,
)


@given(INDICES, st.integers(1, 12))
def test_division_keeps_its_meaning(index, divisor):
    whole, rest = quotient(index, divisor), remainder(index, divisor)

    for at in points():
        assert value(whole, at) == value(index, at) // divisor
        assert value(rest, at) == value(index, at) % divisor
    assert whole * divisor + rest == index


@given(INDICES)
def test_bounds_hold_and_are_met(index):
    values = [value(index, at) for at in points()]

    assert bounds(index) == (min(values), max(values))


def test_views_that_undo_each_other_vanish():
    c = along(C)
    for shape in ((2, 4), (2, 2, 2), (8, 1), (4, 2)):
        assert joined(parted(c, shape), shape) == c


def test_a_flat_index_of_heads_comes_apart():
    head, inner = Axis("head", 6), Axis("inner", 16)

    flat = along(head) * 16 + along(inner)

    assert parted(flat, (6, 16)) == [along(head), along(inner)]
    assert parted(flat, (3, 32)) == [
        quotient(along(head), 2),
        remainder(along(head), 2) * 16 + along(inner),
    ]


def test_what_is_left_of_an_axis_is_its_remainder():
    c = along(C)

    assert c - quotient(c, 4) * 4 == remainder(c, 4)


def test_order_does_not_matter():
    assert along(A) + along(B) == along(B) + along(A)
    assert hash(along(A) * 2 + along(B)) == hash(along(B) + along(A) * 2)


def test_symbolic_extents_divide():
    n = dims.symbol("n")
    outer, inner = Axis("o", 4), Axis("i", n)

    flat = along(outer) * n + along(inner)

    assert quotient(flat, n) == along(outer)
    assert remainder(flat, n) == along(inner)


def test_substitution_simplifies():
    index = quotient(along(C), 4) * 4 + remainder(along(C), 4) * 2

    moved = substituted(index, {C: along(A) * 4 + along(B)}, lambda v: v)

    assert moved == along(A) * 4 + along(B) * 2
