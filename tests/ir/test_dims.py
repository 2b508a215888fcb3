"""Sizes: what is provable when every symbol is at least one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseopt.ir import dims

S, T = dims.symbol("s"), dims.symbol("t")


@given(st.integers(0, 60), st.integers(1, 12))
def test_division_of_numbers_is_exact_or_none(a, b):
    assert dims.divide(a, b) == (a // b if a % b == 0 else None)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (S, S, 1),
        (S * T, S, T),
        (6 * S, 3, 2 * S),
        (6 * S, 3 * S, 2),
        (S * T + S, S, T + 1),
        (2 * S + 4, 2, S + 2),
        (S**2 - T**2, S - T, S + T),
        (0, S, 0),
        (S, 2, None),
        (S, T, None),
        (3 * S, 2, None),
        (S + 1, S, None),
        (4, S, None),
        (S * T, S**2, None),
    ],
)
def test_division_of_sizes(a, b, expected):
    found = dims.divide(a, b)

    assert found is None if expected is None else dims.same(found, expected)


@pytest.mark.parametrize(
    "size", [0, 3, S, S - 1, 2 * S - 2, S * T - 1, S * T - S, S**2 - S, S * T - S - T + 1]
)
def test_sizes_that_cannot_be_negative(size):
    assert dims.is_nonnegative(size)


@pytest.mark.parametrize("size", [-1, S - 2, -S, S - T, S * T - 2 * S, 3 - S])
def test_sizes_that_may_be_negative(size):
    assert not dims.is_nonnegative(size)


@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4
    )
)
def test_what_is_called_nonnegative_is(terms):
    size = dims.as_size(sum((c * S**i * T**j for c, i, j in terms), start=S * 0))

    if dims.is_nonnegative(size):
        for s in range(1, 6):
            assert all(dims.hint(size, {S: s, T: t}) >= 0 for t in range(1, 6))


def test_sums_and_products_have_one_form():
    assert dims.add(dims.multiply(S, T), -dims.multiply(T, S)) == 0
    assert isinstance(dims.add(S, -S), int)
    assert dims.multiply(S + 1, T) == S * T + T
    assert dims.same((S + 1) * T, S * T + T)
    assert not dims.same(S, T)
    assert dims.same_shape((S, 2), (S, 2))
    assert not dims.same_shape((S, 2), (S,))


def test_sizes_print_as_people_write_shapes():
    assert dims.text((4, S, 1024)) == "4xsx1024"
    assert dims.text(()) == "()"


def test_symbols_and_example_values():
    assert dims.symbols_in(S * T + 1) == {S, T}
    assert dims.symbols_in(7) == frozenset()
    assert dims.hint(S * T + 1, {S: 3, T: 5}) == 16
