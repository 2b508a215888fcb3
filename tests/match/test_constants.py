"""Constants: arithmetic on numbers and unknowns, and solving for one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseopt.ir import dims
from fuseopt.match import constants
from fuseopt.match.constants import evaluate, plus, power, solve, times, unknown

N, EPS, CAP = unknown("N"), unknown("eps"), unknown("cap")


def test_numbers_stay_numbers():
    assert plus(1.0, 2.5) == 3.5
    assert times(2.0, 4.0) == 8.0
    assert power(4.0, -0.5) == 0.5
    assert plus(math.inf, -1.0) == math.inf


def test_what_cancels_but_for_rounding_is_zero():
    assert plus(0.1, 0.2, -0.3) == 0
    assert constants.is_zero(plus(times(3.0, N), times(-3.0, N)))


def test_sums_and_products_have_one_form():
    assert plus(N, EPS) == plus(EPS, N)
    assert times(plus(N, 1.0), EPS) == plus(times(N, EPS), EPS)
    assert times(N, power(N, -1.0)) == 1.0
    assert power(times(4.0, N), 0.5) == times(2.0, power(N, 0.5))


def test_the_power_of_a_sum_is_an_unknown_itself():
    root = power(plus(N, 1.0), 0.5)

    assert constants.unknowns(root) == {"N"}
    assert evaluate(root, {"N": 8.0}) == 3.0


@pytest.mark.parametrize(
    ("constant", "name", "value", "expected"),
    [
        (times(EPS, 8.0), "eps", 4e-5, 5e-6),
        (plus(1.0, times(2.0, EPS)), "eps", 1.5, 0.25),
        (times(-2.0, power(CAP, -1.0)), "cap", -0.04, 50.0),
        (power(CAP, 2.0), "cap", 9.0, 3.0),
        (power(plus(CAP, 1.0), 0.5), "cap", 3.0, 8.0),
    ],
)
def test_solving_gives_the_unknown(constant, name, value, expected):
    assert solve(constant, name, value) == pytest.approx(expected)


def test_what_is_not_plain_is_not_solved():
    assert solve(plus(CAP, power(CAP, 2.0)), "cap", 6.0) is None
    assert solve(2.0, "cap", 6.0) is None


def test_sizes_become_constants():
    size = dims.symbol("s")

    assert constants.of_size(12) == 12.0
    assert evaluate(constants.of_size(2 * size + 1), {"s": 4.0}) == 9.0


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(-2, 2))
def test_evaluation_respects_arithmetic(a, b, p):
    x, y = unknown("x"), unknown("y")
    values = {"x": a, "y": b}

    assert evaluate(times(plus(x, y), x), values) == pytest.approx((a + b) * a)
    assert evaluate(power(times(x, y), p), values) == pytest.approx((a * b) ** p)


def test_close_is_not_the_same():
    assert constants.are_close(0.79788456, math.sqrt(2 / math.pi))
    assert not constants.are_same(0.79788456, math.sqrt(2 / math.pi))
    assert not constants.are_close(1.702, 1.7)
