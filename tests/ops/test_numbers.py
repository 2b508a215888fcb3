"""Python numbers and mixed operands: held in the dtype that PyTorch holds them in, or refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import random

import fuseopt
from fuseopt.events import FellBack, RegionFused

NARROW = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))


def around(number: float, dtype: torch.dtype) -> torch.Tensor:
    """A number as the dtype holds it, and its neighbours."""
    middle = torch.full((3,), number, dtype=dtype)
    return torch.stack([middle * 0.9, middle, middle * 1.1])


EXACT = {
    "equal": lambda x, m: (x == 0.1) | m,
    "order": lambda x, m: (x >= 0.1) & (x <= 0.1) & ~m,
    "unequal": lambda x, m: (x != 0.1) | m,
    "filled": lambda x, m: x.masked_fill(m, 0.7) == 0.7,
    "chosen": lambda x, m: torch.where(m, x, 0.7) == 0.7,
    "clamped": lambda x, m: (x.clamp(0.1, 0.3) == 0.1) | m,
    "bounded": lambda x, m: (F.hardtanh(x, 0.1, 0.3) <= 0.1) | m,
    "constant": lambda x, m: (torch.full_like(x, 0.1) == x) | m,
    "remainder": lambda x, m: (x * 0 + 100) % 0.3,
    "whole numbers": lambda x, m: (x * 0 + 2048 == torch.full((3, 3), 2049)) | m,
}


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_a_number_is_rounded_as_the_tensor_beside_it(name, dtype):
    function, args = EXACT[name], (around(0.1, dtype), random(3, 3, dtype=torch.bool))
    optimized = fuseopt.optimize(lambda x, m: function(x, m), verify=False)

    found, wanted = optimized(*args), function(*args)

    assert optimized.log.of(RegionFused)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


REFUSED = {
    "fill": lambda x: x.masked_fill(x > 0, 1e40) + 1,
    "constant": lambda x: torch.full_like(x, 1e40) + x,
    "clamp": lambda x: x.clamp(max=1e40) + 1,
    "alpha": lambda x: torch.add(x, x, alpha=1e40) + 1,
    "padding": lambda x: F.pad(x + 1, (1, 1), value=1e40),
}


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32], ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_a_number_beyond_the_dtype_raises_as_in_pytorch(name, dtype):
    optimized = fuseopt.optimize(lambda x: REFUSED[name](x))

    with pytest.raises(RuntimeError, match="without overflow"):
        optimized(random(4, 4, dtype=dtype))


def test_a_number_beyond_an_integers_range_raises_as_in_pytorch():
    optimized = fuseopt.optimize(lambda x: torch.add(x, x, alpha=300) * 2)

    with pytest.raises(RuntimeError, match="without overflow"):
        optimized(torch.arange(8, dtype=torch.int8))


def test_a_choice_beyond_the_dtype_is_infinite():
    def function(x):
        return torch.where(x > 10, x, -1e9) / 1e6

    x = random(4, 4, dtype=torch.float16)

    assert torch.equal(fuseopt.optimize(function)(x), function(x))


BOOLS = {
    "a number less a bool": lambda x, m: (1 - m) * x,
    "a tensor less a bool": lambda x, m: (x - m) * 2,
    "a bool less a tensor": lambda x, m: (m - x) * 2,
    "a tensor less True": lambda x, m: (x - True) * 2,
}


@pytest.mark.parametrize("name", BOOLS)
def test_subtraction_of_a_bool_raises_as_in_pytorch(name):
    optimized = fuseopt.optimize(lambda x, m: BOOLS[name](x, m))

    with pytest.raises(RuntimeError, match="Subtraction"):
        optimized(random(4, 4), random(4, 4, dtype=torch.bool))


@pytest.mark.parametrize("divide", [lambda x: x // 0, lambda x: x % 0, lambda x: torch.fmod(x, 0)])
def test_integer_division_by_zero_is_left_to_pytorch(divide):
    optimized = fuseopt.optimize(lambda x: divide(x) + 1)

    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        optimized(torch.arange(8))


def test_what_pytorch_takes_is_still_fused():
    def function(x):
        return (x * 2 < 1e9) & (x != 70000), x % 1e9 * 2

    optimized = fuseopt.optimize(function)
    x = random(4, 8, dtype=torch.float16)

    torch.testing.assert_close(optimized(x), function(x))
    assert optimized.log.of(RegionFused)
    assert not optimized.log.of(FellBack)
