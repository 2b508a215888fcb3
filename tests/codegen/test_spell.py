"""Numbers and sizes as Triton spells them."""

from __future__ import annotations

import math

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Mod, PythonMod

from fuseopt.codegen import spell
from fuseopt.errors import KernelError
from fuseopt.ir import dims

S, T = dims.symbol("s"), dims.symbol("t")


class Language:
    """Stands for `triton.language` where a spelled size is evaluated on Python ints."""

    maximum = staticmethod(max)
    minimum = staticmethod(min)


@pytest.mark.parametrize(
    "size",
    [
        12,
        S,
        S * T + 1,
        S**2,
        3 * (S + T) ** 2 * T,
        S * (T + 1),
        7 - S,
        S - 2 * T,
        (S * T + S) / 2,
        FloorDiv(S + 1, 2),
        FloorDiv(S, T) * T,
        S - FloorDiv(S + T, 2),
        FloorDiv(S * T, T + 1),
        Mod(S, 3),
        PythonMod(S * T, 4),
        Max(1, S - 3),
        Max(T, S - 3, 4),
        sympy.Min(S, T),
        T * Max(1, FloorDiv(S, 2)),
    ],
    ids=str,
)
def test_a_size_is_spelled_without_powers_and_functions(size):
    text = spell.size(size)

    assert "**" not in text
    for s, t in ((3, 5), (8, 3), (4, 4), (1, 1)):
        if not isinstance(size, int) and size.subs({S: s, T: t}).is_Integer is not True:
            continue
        found = eval(text, {"tl": Language, "s": s, "t": t})
        assert found == dims.hint(size, {S: s, T: t}), text


def test_a_size_without_a_spelling_is_a_kernel_error():
    with pytest.raises(KernelError, match="has no spelling in Triton"):
        spell.size(sympy.sqrt(S))


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (5, torch.int64, "5"),
        (300, torch.uint8, "44"),
        (-1, torch.uint8, "255"),
        (200, torch.int8, "-56"),
        (2**40 + 3, torch.int32, "3"),
        (-(2**63), torch.int64, str(-(2**63))),
        (True, torch.bool, "True"),
        (0.1, torch.float32, "0.1"),
        (-0.0, torch.float32, "-0.0"),
        (math.inf, torch.float32, 'float("inf")'),
        (-math.inf, torch.float32, 'float("-inf")'),
        (math.nan, torch.float32, 'float("nan")'),
    ],
)
def test_numbers_are_literals_that_their_dtype_holds(value, dtype, text):
    assert spell.number(value, dtype) == text


def test_a_factor_of_one_is_not_written():
    assert spell.times("x0", 1) == "x0"
    assert spell.times("x0", 8) == "x0 * 8"
    assert spell.times("x0", S) == "x0 * (s)"
