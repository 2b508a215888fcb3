"""Index arithmetic against integer arithmetic, at every point of the axes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fuseopt.ir import dims
from fuseopt.ir.index import (
    Axis,
    Index,
    Quotient,
    Remainder,
    SplitAxis,
    axis_index,
    bounds,
    evaluate,
    mixed_radix,
    quotient,
    remainder,
    split_index,
    within,
)

AXES = tuple(Axis(name, extent) for name, extent in (("a", 2), ("b", 6), ("c", 4)))
A, B, C = map(axis_index, AXES)
SIZES = {dims.symbol("s"): 3, dims.symbol("t"): 5}
S, T = SIZES


def points(axes=AXES):
    """Every assignment of numbers to axes."""
    for values in itertools.product(*(range(dims.hint(a.extent, SIZES)) for a in axes)):
        yield dict(zip(axes, values, strict=True))


def at(index: Index, point) -> int:
    """The number that an index stands for at a point, sizes replaced by their values."""
    value = evaluate(index, point, lambda _: None)
    return value if isinstance(value, int) else int(value.subs(SIZES))


def number(size) -> int:
    return dims.hint(size, SIZES)


@st.composite
def indices(draw) -> Index:
    """An index over AXES that is never negative."""
    index = Index(draw(st.integers(0, 9)))
    for axis in AXES:
        step = draw(st.integers(-3, 12))
        index = index + axis_index(axis) * step
        if step < 0:
            index = index + -step * (axis.extent - 1)
    return index


divisors = st.integers(1, 14)


@given(indices(), indices(), st.integers(-4, 4))
def test_sums_and_multiples(left, right, factor):
    for point in points():
        assert at(left + right, point) == at(left, point) + at(right, point)
        assert at(left * factor, point) == at(left, point) * factor
        assert at(left + factor, point) == at(left, point) + factor


@given(indices(), divisors)
def test_quotient_and_remainder(index, divisor):
    whole = quotient(index, divisor, split=False)
    rest = remainder(index, divisor, split=False)

    for point in points():
        assert (at(whole, point), at(rest, point)) == divmod(at(index, point), divisor)


@given(indices(), divisors, divisors)
def test_division_of_divisions(index, first, second):
    inner = remainder(index, first, split=False)
    nested = quotient(inner + index, second, split=False)

    for point in points():
        expected = (at(index, point) % first + at(index, point)) // second
        assert at(nested, point) == expected


@given(indices())
def test_bounds_are_the_extremes(index):
    found = [at(index, point) for point in points()]

    assert bounds(index) == (min(found), max(found))
    assert within(index, max(found) + 1)
    assert not within(index, max(found))


@given(indices(), divisors)
def test_bounds_hold_for_quotients_and_remainders(index, divisor):
    index = quotient(index, divisor, split=False) + remainder(index, divisor, split=False) * 2
    low, high = bounds(index)

    assert all(low <= at(index, point) <= high for point in points())


@given(indices(), indices(), divisors)
def test_substitution_is_evaluation_at_other_values(index, other, divisor):
    index = index + quotient(index, divisor, split=False)

    replaced = index.substitute({AXES[0]: other})

    for point in points():
        assert at(replaced, point) == at(index, {**point, AXES[0]: at(other, point)})


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_coordinates_in_any_shape_of_as_many_elements(shape, data):
    """As a view from `shape` to another shape does, with axes split where that makes it exact."""
    count = math.prod(shape)
    first = data.draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    second = data.draw(st.sampled_from([n for n in range(1, first + 1) if first % n == 0]))
    wanted = (count // first, first // second, second)
    axes = [Axis(f"x{n}", extent) for n, extent in enumerate(shape) if extent != 1]
    for _ in range(64):
        try:
            found = split_index(mixed_radix(axes), wanted)
            break
        except SplitAxis as request:
            outer = Axis(f"{request.axis.name}o", request.axis.extent // request.inner)
            inner = Axis(f"{request.axis.name}i", request.inner)
            place = axes.index(request.axis)
            axes[place : place + 1] = [outer, inner]
    else:
        pytest.fail("splitting does not end")

    flat = [tuple(at(i, point) for i in found) for point in points(axes)]

    assert flat == list(itertools.product(*map(range, wanted)))


def test_a_view_that_factors_needs_no_division():
    with pytest.raises(SplitAxis) as caught:
        quotient(B, 3)

    assert (caught.value.axis, caught.value.inner) == (AXES[1], 3)
    assert quotient(A * 12 + B, 12) == A
    assert remainder(A * 12 + B, 12) == B
    assert quotient(A * 24 + B * 4 + C, 4) == A * 6 + B


def test_a_view_that_does_not_factor_divides():
    whole, rest = quotient(B, 4), remainder(B, 4)

    assert [type(i.terms[0][0]) for i in (whole, rest)] == [Quotient, Remainder]
    assert bounds(whole) == (0, 1)
    assert bounds(rest) == (0, 3)


def test_what_cancels_disappears():
    assert A + B + A * -1 == B
    assert (A * 0).is_constant
    assert A * 2 + Index(5) + A * -2 + -5 == Index()


@pytest.mark.parametrize("extents", [(S, 4), (4, S), (S, T), (S, 2, T), (S * T, 3)])
def test_flat_indices_over_symbolic_extents_come_apart_again(extents):
    axes = [Axis(f"x{n}", extent) for n, extent in enumerate(extents)]

    assert split_index(mixed_radix(axes), extents) == tuple(map(axis_index, axes))


@given(st.integers(0, 4), st.integers(0, 4), st.sampled_from([2, 3, S, T, S * 2, S * T]))
def test_division_with_symbolic_sizes(first, second, divisor):
    axes = (Axis("x", S), Axis("y", T))
    x, y = map(axis_index, axes)
    index = x * dims.multiply(T, first) + y * second + S * first
    assume(index.terms)

    whole = quotient(index, divisor, split=False)
    rest = remainder(index, divisor, split=False)

    for point in points(axes):
        assert (at(whole, point), at(rest, point)) == divmod(at(index, point), number(divisor))


@pytest.mark.parametrize(("index", "extent"), [(S - 1, S), (0, S), (S, S + 1), (S * T - T, S * T)])
def test_symbolic_bounds_are_proved(index, extent):
    assert within(Index(index), extent)
    assert not within(Index(extent), extent)


def test_symbolic_axes_stay_within_their_own_extent():
    x = axis_index(Axis("x", S))

    assert within(x, S)
    assert within(x + 1, S + 1)
    assert not within(x + 1, S)
    assert not within(x, T)
    assert within(x * -1 + (S - 1), S)
