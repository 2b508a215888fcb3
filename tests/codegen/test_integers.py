"""Integers and booleans in printed kernels: wrap-around, constants, shifts, mixed widths."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import case, random, run, under

from fuseopt.codegen.schedule import Schedule
from fuseopt.ir.evaluate import evaluate
from fuseopt.ops import NotExpressible

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def pool(dtype: torch.dtype) -> torch.Tensor:
    """Small numbers and the ends of a dtype's range."""
    limits = torch.iinfo(dtype)
    numbers = [0, 1, 2, 3, 7, 100, 127, limits.max, limits.max - 1, limits.min, limits.min + 1]
    negative = [] if dtype == torch.uint8 else [-1, -2, -7]
    return torch.tensor([*numbers, *negative], dtype=dtype)


def pairs(dtype: torch.dtype, *, nonzero: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of such numbers; division needs a second one that is neither 0 nor -1."""
    a = b = pool(dtype)
    if nonzero:
        b = b[(b != 0) & (b != -1)] if dtype != torch.uint8 else b[b != 0]
    left, right = torch.meshgrid(a, b, indexing="ij")
    return left.flatten(), right.flatten()


def assert_exact(function, *args, store) -> None:
    """Fail unless evaluation and printed kernels give exactly what PyTorch gives."""
    made = case(function, *args)
    plans = [lambda k: Schedule(k.rows, (), 64, 1)]
    if made.kernel.columns:
        plans = [
            lambda k: Schedule(k.rows, k.columns, 1, 256),
            lambda k: Schedule(k.rows, k.columns, 1, 64, looped=True),
            lambda k: Schedule(k.rows, k.columns, 1, 64, strips=4),
        ]
    printed = [run(made, under(made, plan), store) for plan in plans]
    for results in (evaluate(made.kernel, made.inputs), *printed):
        for ours, eager in zip(results, made.eager, strict=True):
            torch.testing.assert_close(ours, eager, rtol=0, atol=0, check_stride=False)


# Results pass through another value, so that a number of the wrong width is seen before it is
# stored in the right one.
ARITHMETIC = {
    "add": lambda a, b: (a + b).float(),
    "add a number": lambda a, b: (a + 100).float(),
    "sub": lambda a, b: (a - b).float(),
    "from a number": lambda a, b: (1 - a).float(),
    "mul": lambda a, b: (a * b).float(),
    "scaled sum": lambda a, b: torch.add(a, b, alpha=3).float(),
    "neg": lambda a, b: (-a).float(),
    "square": lambda a, b: (a * a).float(),
    "cube": lambda a, b: (a**3).float(),
    "sign": lambda a, b: (a.sign() * 2).float(),
    "maximum": lambda a, b: (torch.maximum(a, b) + a).float(),
    "minimum": lambda a, b: (torch.minimum(a, b) * 2).float(),
    "relu": lambda a, b: (F.relu(a) + a).float(),
    "clamp": lambda a, b: (a.clamp(2, 90) * 3).float(),
    "where": lambda a, b: (torch.where(a > b, a, 5) + a).float(),
    "masked fill": lambda a, b: (a.masked_fill(b > 3, 7) + 100).float(),
    "not": lambda a, b: (~a).float(),
    "and, or, xor": lambda a, b: ((a & b) + (a | b) * (a ^ 6)).float(),
    "shifts": lambda a, b: ((a << (b & 7)) + (a >> (b & 7))).float(),
    "shifts by any number": lambda a, b: ((a << b) ^ (a >> b)).float(),
    "shifts by too much": lambda a, b: ((a << 64) + (a >> 64)).float(),
    "comparisons": lambda a, b: (a < b) ^ (a >= 5) ^ (a == b),
    "true division": lambda a, b: a / 3,
    "product with bools": lambda a, b: (a * (b > 1) + (a > 2)).float(),
    "concatenation": lambda a, b: (torch.cat((a, b)) + 100).float(),
    "padding": lambda a, b: (F.pad(a, (1, 1), value=9) + 100).float(),
    "range": lambda a, b: (torch.arange(a.numel(), dtype=a.dtype) * a).float(),
    "filled": lambda a, b: (torch.full_like(a, 100) + a).float(),
}
DIVISION = {
    "remainder": lambda a, b: (a % b).float(),
    "fmod": lambda a, b: torch.fmod(a, b).float(),
    "floor": lambda a, b: (a // b).float(),
    "towards zero": lambda a, b: torch.div(a, b, rounding_mode="trunc").float(),
    "by numbers": lambda a, b: (a % 3).float() + (a // 3).float(),
}
REDUCTION = {
    "sum": lambda a, b: a.sum(),
    "sum of its own width": lambda a, b: a.sum(dtype=a.dtype) + 1,
    "product": lambda a, b: a.prod(),
    "largest": lambda a, b: (a.amax() + a).float(),
    "smallest": lambda a, b: (a.amin() + a).float(),
    "truth": lambda a, b: (a.any(), (a + 1).all()),
    "how many": lambda a, b: torch.count_nonzero(a > 5),
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_wraps_around_in_its_own_width(name, dtype, store):
    assert_exact(ARITHMETIC[name], *pairs(dtype), store=store)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", DIVISION)
def test_division_rounds_as_asked(name, dtype, store):
    assert_exact(DIVISION[name], *pairs(dtype, nonzero=True), store=store)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", REDUCTION)
def test_reductions_of_integers(name, dtype, store):
    assert_exact(REDUCTION[name], *pairs(dtype), store=store)


@pytest.mark.parametrize("source", INTEGERS, ids=str)
@pytest.mark.parametrize("target", [*INTEGERS, torch.bool, torch.float16, torch.bfloat16], ids=str)
def test_conversions(source, target, store):
    if target.is_floating_point and source in (torch.int32, torch.int64):
        args = (random(40, dtype=source),)
    else:
        args = (pool(source),)

    assert_exact(lambda a: a.to(target) * 1, *args, store=store)


BOOLEANS = {
    "and, or, xor, not": lambda a, b: (a & b) | (a ^ ~b),
    "sum is or": lambda a, b: a + b,
    "product is and": lambda a, b: a * b,
    "order": lambda a, b: (a < b) ^ (a >= b) ^ (a == b),
    "extremes": lambda a, b: torch.maximum(a, b) ^ torch.minimum(a, b),
    "as numbers": lambda a, b: a.float() - b.float() * 1.5,
    "with numbers": lambda a, b: (a + 3, a * 1.5),
    "chosen": lambda a, b: torch.where(a, b, ~b).masked_fill(b, True),
    "counted": lambda a, b: a.sum() + b.sum(),
    "any and all": lambda a, b: ((a & b).any(), (a | b).all()),
    "concatenated": lambda a, b: torch.cat((a, b)) ^ True,
}


@pytest.mark.parametrize("name", BOOLEANS)
def test_booleans(name, store):
    a, b = torch.tensor([True, False, True, False]), torch.tensor([True, True, False, False])

    assert_exact(BOOLEANS[name], a, b, store=store)


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda a: a + 300, torch.uint8),
        (lambda a: a > 300, torch.int8),
        (lambda a: a > -1, torch.uint8),
        (lambda a: a.clamp(-1000, 1000), torch.int8),
    ],
)
def test_a_constant_outside_the_range_of_its_dtype_is_left_to_pytorch(function, dtype):
    """PyTorch raises for some of these and wraps others around."""
    with pytest.raises((NotExpressible, RuntimeError)):
        case(function, pool(dtype))


def test_bounds_of_a_range_are_the_dtype_s_own(store):
    assert_exact(lambda a: (a + 255) ^ (a - 1), pool(torch.uint8), store=store)
    assert_exact(lambda a: (a + 127) * (a + -128), pool(torch.int8), store=store)
