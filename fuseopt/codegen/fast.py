"""Cheaper functions for kernels whose results are rounded to 16 bits or fewer.

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

# The functions as they stand in a kernel's module, in the order in which they use each other.
HELPERS = {
    "_quotient": '''
@triton.jit
def _quotient(a, b):
    """a / b to two units in the last place."""
    return {divide}
''',
    "_tanh": '''
@triton.jit
def _tanh(x):
    """Hyperbolic tangent; two terms of its series where 1 - 2 / (e ** 2x + 1) cancels."""
    far = 1.0 - _quotient(2.0, tl.exp(2.0 * x) + 1.0)
    return tl.where(tl.abs(x) < 0.02, x * (1.0 - x * x * 0.33333334), far)
''',
    "_erf": '''
@triton.jit
def _erf(x):
    """Error function by Abramowitz & Stegun 7.1.26, to 1.5e-7."""
    t = _quotient(1.0, 1.0 + 0.3275911 * tl.abs(x))
    p = (1.061405429 * t - 1.453152027) * t + 1.421413741
    p = ((p * t - 0.284496736) * t + 0.254829592) * t
    rest = p * tl.exp(-(x * x))
    return tl.where(x < 0.0, rest - 1.0, 1.0 - rest)
''',
}


_ANEW = '''
@triton.jit
def _anew_{size}(x):
    """x, as far as the compiler knows another value."""
    return {result}
'''
_MOVE = (
    'tl.inline_asm_elementwise("mov.b{bits} $0, $1;", "={kind},{kind}", [x], dtype=x.dtype, '
    "is_pure=False, pack={pack})"
)


def may_be_fast(kernel: LoopKernel) -> bool:
    """Whether every result is rounded to 16 bits and no small error becomes a step on the way."""
    floats = [p.dtype for p in kernel.outputs if p.dtype.is_floating_point]
    if not floats or any(d not in NARROW for d in floats):
        return False
    return not any(_steps(v) for v in kernel.values())


def _steps(value: object) -> bool:
    if isinstance(value, Convert):
        return value.arg.dtype.is_floating_point and not value.dtype.is_floating_point
    if isinstance(value, Apply) and value.primitive in _STEPS:
        return any(a.dtype.is_floating_point and isinstance(a, Apply) for a in value.args)
    return False


def fast_spelling(value: Apply, texts: list[str], inner_axes: frozenset[Axis]) -> str | None:
    """Return a cheaper expression for a float32 value, or None to use the exact one."""
    if value.dtype != torch.float32:
        return None
    match value.primitive:
        case "div":
            return _divide(value, texts, inner_axes)
        case "tanh":
            return f"_tanh({texts[0]})"
        case "erf":
            return f"_erf({texts[0]})"
        case _:
            return None


def _divide(value: Apply, texts: list[str], inner_axes: frozenset[Axis]) -> str:
    divisor = value.args[1]
    if (
        isinstance(divisor, Number)
        and isinstance(divisor.value, (int, float))
        and abs(divisor.value) > 1e-30
    ):
        return f"({texts[0]} * {1.0 / divisor.value!r})"
    if not divisor.axes & inner_axes and value.axes & inner_axes:
        return f"({texts[0]} * (1.0 / {texts[1]}))"  # one division a row, not one an element
    return f"_quotient({texts[0]}, {texts[1]})"


def helper_functions(lines: list[str], *, interpreted: bool) -> str:
    """Return the text of the functions above that some statements call."""
    body = "\n".join(lines)
    wanted = {name for name in HELPERS if f"{name}(" in body}
    if wanted:
        wanted.add("_quotient")
    divide = "a / b" if interpreted else "libdevice.fast_dividef(a, b)"
    found = [HELPERS[name].replace("{divide}", divide) for name in HELPERS if name in wanted]
    for size in (1, 2, 4, 8):
        if f"_anew_{size}(" in body:
            register = {"bits": 64, "kind": "l"} if size == 8 else {"bits": 32, "kind": "r"}
            move = "x" if interpreted else _MOVE.format(pack=max(1, 4 // size), **register)
            found.append(_ANEW.format(size=size, result=move))
    return "\n".join(found)
