"""NaN, infinities, zeros of both signs and masked rows, in printed kernels."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from regions import case, check, random, run, under

from fuseopt.codegen.schedule import Schedule

NAN, INF = math.nan, math.inf
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, NAN, INF, -INF, 3e4, 1e-3, -1e-3]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
ROWS = {
    "resident": lambda k: Schedule(k.rows, k.columns, 4, 128),
    "strips": lambda k: Schedule(k.rows, k.columns, 1, 32, 4),
    "loop": lambda k: Schedule(k.rows, k.columns, 1, 16, 2, looped=True),
    "shared": lambda k: Schedule(k.rows, k.columns, 1, 32, 2, parts=2),
}


def flat(kernel):
    return Schedule(kernel.rows, (), 256, 1)


def every_pair(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    special = torch.tensor(SPECIAL, dtype=dtype)
    a, b = torch.meshgrid(special, special, indexing="ij")
    return a.flatten(), b.flatten()


def special_rows(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows that each break something else."""
    x = random(13, 100, dtype=dtype)
    x[0] = -INF
    x[1, 3] = NAN
    x[2, 5] = INF
    x[3, 7] = -INF
    x[4] = 0.0
    x[5] = -0.0
    x[6, 2], x[6, 4] = INF, -INF
    x[7, 2], x[7, 60] = INF, NAN
    x[8] = INF
    x[9, 50:] = -INF
    x[10, :50] = -INF
    x[11, 1:] = -INF
    return x


ELEMENTWISE = {
    "sign": lambda a, b: torch.sign(a),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "clamp": lambda a, b: a.clamp(-0.5, 0.5),
    "clamp between tensors": lambda a, b: torch.clamp(a, b, b + 1),
    "relu": lambda a, b: F.relu(a) + F.relu6(b),
    "hardtanh": lambda a, b: F.hardtanh(a) * F.hardsigmoid(b),
    "where": lambda a, b: torch.where(a > b, a, b),
    "comparisons": lambda a, b: torch.stack((a < b, a <= b, a == b, a != b, a > b, a >= b)),
    "tests": lambda a, b: a.isnan() | b.isinf() & a.isfinite(),
    "truth": lambda a, b: torch.logical_and(a, b) ^ a.bool(),
    "not a number to one": lambda a, b: torch.nan_to_num(a, 7.0),
    "masked fill": lambda a, b: a.masked_fill(b > 0, -INF),
    "exponentials": lambda a, b: torch.exp(a) * 0.5 + torch.sigmoid(b),
    "logarithms": lambda a, b: torch.log(a) + torch.log1p(b),
    "roots": lambda a, b: torch.sqrt(a) + torch.rsqrt(b),
    "quotient": lambda a, b: a / b,
    "hyperbolic tangent": lambda a, b: torch.tanh(a) + torch.erf(b),
    "activations": lambda a, b: F.silu(a) + F.gelu(b),
    "gates": lambda a, b: F.softplus(a) + F.elu(b),
    "xlogy": torch.xlogy,
    "logaddexp": torch.logaddexp,
    "powers": lambda a, b: (a**2, b**3, a**0, b**-1, a**-2),
    "hard shrink": lambda a, b: F.hardshrink(a) + F.threshold(b, 0.1, 20.0),
    "leaky": lambda a, b: F.leaky_relu(a, 0.2) + F.hardswish(b),
    "interpolated": lambda a, b: torch.lerp(a, b, 0.3),
    "copied sign": torch.copysign,
    "angle": torch.atan2,
    "heaviside": torch.heaviside,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_pair_of_special_values(name, dtype, store):
    made = case(ELEMENTWISE[name], *every_pair(dtype))

    check(made, under(made, flat), store)


SIGNED = {
    "negation": lambda a: -a,
    "absolute": lambda a: a.abs(),
    "product": lambda a: a * 2.0,
    "quotient": lambda a: a / 3.0,
    "reciprocal": lambda a: 1.0 / a,
    "rounding": lambda a: torch.stack((a.floor(), a.ceil(), a.trunc(), a.round())),
    "conversion": lambda a: a.double() * 1,
    "square root": torch.sqrt,
    "hyperbolic tangent": torch.tanh,
    "chosen": lambda a: torch.where(a == 0, a, 1.0),
    "concatenated": lambda a: torch.cat((a, -a)),
    "subtracted from zero": lambda a: 0.0 - a,
    "added to zero": lambda a: a + 0.0,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIGNED)
def test_zeros_keep_their_sign(name, dtype, store):
    x = torch.tensor([0.0, -0.0, 0.25, -0.25, -INF, INF], dtype=dtype)
    made = case(lambda a: SIGNED[name](a), x)

    (ours,) = run(made, under(made, flat), store)

    numbers = ~ours.isnan()
    assert torch.equal(ours.signbit()[numbers], made.eager[0].signbit()[numbers])
    assert torch.equal(ours.isnan(), made.eager[0].isnan())


def test_the_negative_of_an_unsigned_number_wraps_around(store):
    made = case(lambda a: -a, torch.tensor([0, 1, 255], dtype=torch.uint8))

    (ours,) = run(made, under(made, flat), store)

    assert ours.tolist() == [0, 255, 1]


# ---------------------------------------------------------------------------------------- rows


def log_of_sum(x):
    """As people write it: a row of -inf gives NaN."""
    high = x.amax(-1, keepdim=True)
    return high + torch.log(torch.exp(x - high).sum(-1, keepdim=True))


def parts_of_softmax(x):
    high = x.amax(-1, keepdim=True)
    return torch.exp(x - high), torch.exp(x - high).sum(-1), high * 1


def masked_softmax(x):
    return F.softmax(x.masked_fill(x.isnan(), -INF), -1)


REDUCTIONS = {
    "softmax": lambda x: F.softmax(x, -1),
    "masked softmax": masked_softmax,
    "safe softmax": lambda x: torch._safe_softmax(x, -1),
    "log softmax": lambda x: F.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "logsumexp by hand": log_of_sum,
    "softmax by hand": parts_of_softmax,
    "largest": lambda x: x.amax(-1),
    "smallest": lambda x: x.amin(-1),
    "sum": lambda x: x.sum(-1),
    "product": lambda x: x.prod(-1),
    "layer norm": lambda x: F.layer_norm(x, (100,)),
    "layer norm with statistics": lambda x: torch.native_layer_norm(x, [100], None, None, 1e-5),
    "rms norm": lambda x: F.rms_norm(x, (100,)),
    "largest magnitude": lambda x: torch.linalg.vector_norm(x, INF, -1),
    "truth": lambda x: ((x > 1).any(-1), (x > -1).all(-1)),
}
SHARED = ("softmax", "masked softmax", "log softmax", "sum", "layer norm", "rms norm")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("name", "schedule"),
    [(n, s) for n in REDUCTIONS for s in ROWS if s != "shared" or n in SHARED],
)
def test_rows_with_special_values(name, schedule, dtype, store):
    made = case(REDUCTIONS[name], special_rows(dtype))

    check(made, under(made, ROWS[schedule]), store)


@pytest.mark.parametrize("schedule", ROWS)
def test_a_fully_masked_row_is_nan_and_its_neighbours_are_not(schedule, store):
    x = random(3, 100)
    mask = torch.zeros(3, 100, dtype=torch.bool)
    mask[1] = True
    made = case(lambda x, m: F.softmax(x.masked_fill(m, -INF), -1), x, mask)

    (ours,) = run(made, under(made, ROWS[schedule]), store)

    assert ours.isnan().all(-1).tolist() == [False, True, False]
    torch.testing.assert_close(ours[::2].sum(-1), torch.ones(2))


@pytest.mark.parametrize("schedule", ROWS)
def test_a_row_far_from_zero_keeps_its_variance(schedule, store):
    made = case(lambda x: F.layer_norm(x, (100,)), random(4, 100) * 0.01 + 300)

    check(made, under(made, ROWS[schedule]), store)


@pytest.mark.parametrize("schedule", ROWS)
def test_softmax_of_huge_numbers_does_not_overflow(schedule, store):
    made = case(lambda x: F.softmax(x * 1e30, -1), random(4, 100))

    check(made, under(made, ROWS[schedule]), store)


def test_numbers_in_double_precision_are_not_rounded_to_single(store):
    x = random(40, dtype=torch.float64).abs()
    made = case(lambda x: torch.logit(x.clamp(0.1, 0.3), 1e-3) + torch.maximum(x, x * 0 + 0.7), x)

    (ours,) = run(made, under(made, flat), store)

    torch.testing.assert_close(ours, made.eager[0], rtol=1e-14, atol=1e-14)


def test_double_precision_is_compared_with_numbers_as_they_are(store):
    x = torch.tensor([0.1, 0.3, 1 / 3, 0.1 + 1e-12], dtype=torch.float64)
    made = case(lambda x: torch.stack((x == 0.1, x <= 0.1, x > 1 / 3, x != 0.3, x < 0.3)), x)

    (ours,) = run(made, under(made, flat), store)

    assert torch.equal(ours, made.eager[0])
