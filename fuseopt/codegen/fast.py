"""Cheaper spellings for kernels whose results are rounded to 16 bits.

An error of 1e-6 disappears in a bfloat16 or float16 result, and these functions are what keeps such
kernels from running at memory speed: the exact ones cost 30 to 50 instructions an element.
"""

from __future__ import annotations

import torch

from fuseopt.ir.index import Axis
from fuseopt.ir.kernel import LoopKernel
from fuseopt.ir.values import Apply, Convert, Number

NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
# Where a small change of a float becomes a step of one.
_STEPS = frozenset({"floor", "ceil", "trunc", "round", "fmod", "eq", "ne", "lt", "le", "gt", "ge"})


def may_be_fast(kernel: LoopKernel) -> bool:
    """Whether every result is rounded to 16 bits and no small error becomes a step on the way."""
    floats = [p.dtype for p in kernel.outputs if p.dtype.is_floating_point]
    if not floats or any(d not in NARROW for d in floats):
        return False
    for value in kernel.values():
        if (
            isinstance(value, Convert)
            and value.arg.dtype.is_floating_point
            and (not value.dtype.is_floating_point)
        ):
            return False
        if isinstance(value, Apply) and value.primitive in _STEPS and _compares_computed(value):
            return False
    return True


def _compares_computed(value: Apply) -> bool:
    return any(a.dtype.is_floating_point and isinstance(a, Apply) for a in value.args)


def fast_spelling(
    value: Apply, texts: list[str], inner_axes: frozenset[Axis], *, interpreted: bool
) -> str | None:
    """Return a cheaper expression for a float32 value, or None to use the exact one."""
    if value.dtype != torch.float32:
        return None
    match value.primitive:
        case "div":
            return _divide(value, texts, inner_axes, interpreted=interpreted)
        case "tanh":
            # 1 - 2 / (e ** 2x + 1), and two terms of the series where that cancels.
            x = texts[0]
            large = _quotient("2.0", f"(tl.exp(2.0 * {x}) + 1.0)", interpreted=interpreted)
            small = f"{x} - {x} * {x} * {x} * 0.33333334"
            return f"tl.where(tl.abs({x}) < 0.02, {small}, 1.0 - {large})"
        case _:
            return None


def _divide(
    value: Apply, texts: list[str], inner_axes: frozenset[Axis], *, interpreted: bool
) -> str:
    divisor = value.args[1]
    if isinstance(divisor, Number) and abs(divisor.value) > 1e-30:
        return f"({texts[0]} * {1.0 / divisor.value!r})"
    if not divisor.axes & inner_axes and value.axes & inner_axes:
        return f"({texts[0]} * (1.0 / {texts[1]}))"  # one division a row, not one an element
    return _quotient(texts[0], texts[1], interpreted=interpreted)


def _quotient(a: str, b: str, *, interpreted: bool) -> str:
    return f"({a} / {b})" if interpreted else f"libdevice.fast_dividef({a}, {b})"
