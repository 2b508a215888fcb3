"""Judging results: f <= 2 e + limit, rows of noise apart, NaN and integers in place."""

from __future__ import annotations

import math

import pytest
import torch
from regions import random

from fuseopt.verify.compare import FLOOR, LIMITS, NOISE_RATIO, SHORTEST_ROW, judge, within

NAN, INF = math.nan, math.inf
TRUTH = random(8, 64).double()


def exact(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ours, the original's and the truth, all as near as the dtype allows."""
    rounded = TRUTH.to(dtype)
    return rounded.clone(), rounded.clone(), rounded.double()


def peak(row: int = 0) -> float:
    """The largest magnitude of a row: what its errors are measured in."""
    return float(TRUTH[row].abs().max())


# The steps of float8 are wider than its limit.
@pytest.mark.parametrize("dtype", [d for d in LIMITS if d.itemsize > 1], ids=str)
def test_the_limit_of_each_dtype(dtype):
    ours, eager, truth = exact(torch.float64)
    ours, eager = ours.to(dtype), eager.to(dtype)
    truth = eager.double()
    place = int(truth[0].abs().argmin())
    step = LIMITS[dtype] * float(truth[0].abs().max())

    ours[0, place] = eager[0, place] + 0.5 * step
    assert judge(ours, eager, truth).passed
    ours[0, place] = eager[0, place] + 2.0 * step
    verdict = judge(ours, eager, truth)

    assert not verdict.passed
    assert verdict.limit == LIMITS[dtype]
    assert f"element [0, {place}]" in verdict.detail


def test_twice_the_error_of_the_original_is_allowed():
    ours, eager, truth = exact()
    eager[0, 0] += 0.01 * peak()
    ours[0, 0] += 0.0199 * peak()
    assert judge(ours, eager, truth).passed

    ours[0, 0] += 0.0002 * peak()
    verdict = judge(ours, eager, truth)

    assert not verdict.passed
    assert verdict.eager_error == pytest.approx(0.01, rel=1e-3)
    assert verdict.error == pytest.approx(0.0201, rel=1e-3)


def test_an_original_in_float64_excuses_nothing():
    ours, eager, truth = exact(torch.float64)
    ours[3, 3] += 1e-11 * peak(3)

    assert not judge(ours, eager, truth).passed


def test_small_rows_count_as_much_as_large_ones():
    ours, eager, truth = exact()
    scale = torch.ones(8, 1)
    scale[1] = 100 * FLOOR
    ours, eager, truth = ours * scale, eager * scale, (eager * scale).double()
    ours[1, 5] += 1e-4 * peak(1) * 100 * FLOOR

    assert not judge(ours, eager, truth).passed


def test_rows_far_below_the_largest_are_judged_as_if_at_the_floor():
    ours, eager, truth = exact()
    scale = torch.ones(8, 1)
    scale[1] = FLOOR * 1e-3
    ours, eager, truth = ours * scale, eager * scale, (eager * scale).double()
    ours[1, 5] += 0.5e-6 * FLOOR * float(truth.abs().max())

    assert judge(ours, eager, truth).passed


def test_short_rows_are_judged_by_the_whole_tensor():
    truth = random(64, SHORTEST_ROW - 1).double()
    truth[0] = 1e-9
    eager = truth.float()
    ours = eager.clone()
    ours[0, 0] += 1e-7

    assert judge(ours, eager, eager.double()).passed


# ---------------------------------------------------------------------------------- noise rows


def noise() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row 2 cancels to zero but for rounding errors, in both."""
    ours, eager, truth = exact()
    truth[2] = 0.0
    eager[2] = random(64, seed=1) * 1e-2
    ours[2] = random(64, seed=2) * 1e-2
    return ours, eager, truth


def test_rows_of_rounding_errors_are_held_to_their_order_of_magnitude():
    ours, eager, truth = noise()
    assert judge(ours, eager, truth).passed

    ours[2] *= 4 * NOISE_RATIO
    assert not judge(ours, eager, truth).passed


def test_rows_that_the_last_digits_of_the_inputs_make_are_noise():
    truth = TRUTH.clone()
    truth[2] *= 1e-3
    other = truth.clone()
    other[2] = -truth[2]
    ours = truth.clone()
    ours[2] *= 3
    assert not judge(ours, truth, truth).passed
    assert judge(ours, truth, truth, again=[(truth, truth), (other, other)]).passed
    ours[2] *= NOISE_RATIO * 2
    assert not judge(ours, truth, truth, again=[(truth, truth), (other, other)]).passed
    ours = truth.clone()
    ours[3, 5] += 1e-6
    assert not judge(ours, truth, truth, again=[(truth, truth), (other, other)]).passed


def test_the_errors_of_the_original_at_other_inputs_are_its_own():
    ours, eager, truth = exact()
    ours[3, 5] += 2e-5
    worse = eager.clone()
    worse[0, 0] += 1.2e-5
    assert not judge(ours, eager, truth, again=[(eager, truth)]).passed
    assert judge(ours, eager, truth, again=[(eager, truth), (worse, truth)]).passed


def test_a_row_of_noise_excuses_no_error_elsewhere():
    ours, eager, truth = noise()
    ours[5, 1] += 1e-3 * peak(5)

    verdict = judge(ours, eager, truth)

    assert not verdict.passed
    assert "element [5, 1]" in verdict.detail


def test_errors_within_bounds():
    assert within(2e-6, 0.0, 2e-6)
    assert not within(3e-6, 0.0, 2e-6)
    assert within(0.9, 0.45, 2e-6)
    assert within(8.0, 0.6, 2e-6)
    assert not within(10.0, 0.6, 2e-6)


# -------------------------------------------------------------------------- NaN and infinities


@pytest.mark.parametrize("special", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_special_values_stand_where_the_original_has_them(special, dtype):
    ours, eager, truth = exact(dtype)
    for tensor in (ours, eager, truth):
        tensor[4, 4] = special
    assert judge(ours, eager, truth).passed

    ours[4, 4] = 1.0
    verdict = judge(ours, eager, truth)
    assert not verdict.passed
    assert verdict.detail.startswith("NaN or infinity: element [4, 4]")


@pytest.mark.parametrize(("mine", "theirs"), [(NAN, 1.0), (NAN, INF), (INF, -INF), (INF, NAN)])
def test_one_special_value_is_not_another(mine, theirs):
    ours, eager, truth = exact()
    ours[4, 4] = mine
    eager[4, 4] = truth[4, 4] = theirs

    assert not judge(ours, eager, truth).passed


def test_where_only_the_original_overflows_the_truth_counts():
    ours, eager, truth = exact(torch.float16)
    eager[1, 1] = INF

    assert judge(ours, eager, truth).passed


def test_an_exact_result_that_overflows_may_be_infinite():
    ours, eager, truth = exact(torch.float16)
    truth[1, 1], ours[1, 1], eager[1, 1] = 1e6, INF, 60000.0

    assert judge(ours, eager, truth).passed


def test_a_special_value_hides_no_error_beside_it():
    ours, eager, truth = exact()
    for tensor in (ours, eager, truth):
        tensor[4, 4] = NAN
    ours[4, 5] += 0.1

    assert not judge(ours, eager, truth).passed


# --------------------------------------------------------------------------- integers and bools


def test_integers_agree_exactly():
    eager = random(50, 200, dtype=torch.int64)
    ours = eager.clone()
    assert judge(ours, eager, eager).passed

    ours[3, 7] += 2
    verdict = judge(ours, eager, eager)
    assert not verdict.passed
    assert "element [3, 7]" in verdict.detail


def test_a_tie_may_round_the_other_way():
    eager = random(50, 200, dtype=torch.int32)
    ours = eager.clone()
    ours[3, 7] += 1
    ours[4, 7] -= 1
    assert judge(ours, eager, eager).passed

    ours[:, 0] += 1
    assert not judge(ours, eager, eager).passed


def test_where_the_original_itself_is_unsure_more_ties_are_allowed():
    truth = random(50, 200, dtype=torch.int32)
    eager, ours = truth.clone(), truth.clone()
    eager[0, :10] += 1
    ours[1, :15] += 1

    assert judge(ours, eager, truth).passed


def test_the_exact_result_is_right_where_the_original_is_not():
    truth = random(50, 200, dtype=torch.int64)
    eager = truth.clone()
    eager[2] += 5

    assert judge(truth.clone(), eager, truth).passed


def test_bools_have_no_ties():
    eager = random(50, 200, dtype=torch.bool)
    ours = eager.clone()
    ours[3, 7] = ~ours[3, 7]

    assert not judge(ours, eager, eager).passed


# -------------------------------------------------------------------------------------- kinds


def test_another_shape_or_dtype_is_a_failed_verdict():
    ours, eager, truth = exact()

    assert not judge(ours[:4], eager, truth).passed
    assert (
        "torch.float64(8, 64) for torch.float32(8, 64)" in judge(ours.double(), eager, truth).detail
    )
    assert judge(ours[:0], eager[:0], truth[:0]).passed


def test_no_dimensions():
    one = torch.tensor(2.0)

    assert judge(one, one, one.double()).passed
    assert not judge(one * 1.001, one, one.double()).passed


def test_where_devices_differ_nan_may_stand_for_an_infinity():
    inf, nan = float("inf"), float("nan")
    eager = torch.tensor([1.0, nan, inf, 2.0])
    truth = eager.double()

    ours = torch.tensor([1.0, inf, nan, 2.0])

    assert judge(ours, eager, truth, loose=True).passed
    assert not judge(ours, eager, truth).passed
    for wrong in ([nan, nan, inf, 2.0], [1.0, 0.0, inf, 2.0], [1.0, nan, inf, 3.0]):
        assert not judge(torch.tensor(wrong), eager, truth, loose=True).passed
