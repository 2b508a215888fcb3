"""Cheaper functions for kernels whose results are rounded to 16 bits or fewer.

An error of 1e-6 disappears in a bfloat16 or float16 result, and these functions are what keeps such
kernels from running at memory speed: the exact ones cost 30 to 50 instructions an element.
"""

from __future__ import annotations

import torch

from fuseopt.codegen.passes import softmax_pair
from fuseopt.ir.index import Axis
from fuseopt.ir.kernel import LoopKernel
from fuseopt.ir.values import Apply, Convert, Fold, Number, Value

NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
# Where a small change of a float becomes a step of one.
_STEPS = frozenset({"floor", "ceil", "trunc", "round", "fmod", "eq", "ne", "lt", "le", "gt", "ge"})
# What is near zero comes out of these far from it.
_ENLARGE = frozenset({"log", "log2", "log10", "sqrt", "rsqrt", "pow", "atan2"})

# The functions as they stand in a kernel's module, in the order in which they use each other.
HELPERS = {
    "_exp": '''
@triton.jit
def _exp(x):
    """e ** x, zero below 1.2e-38."""
    return {exponential}
''',
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
    far = 1.0 - _quotient(2.0, _exp(2.0 * x) + 1.0)
    return tl.where(tl.abs(x) < 0.02, x * (1.0 - x * x * 0.33333334), far)
''',
    "_erf": '''
@triton.jit
def _erf(x):
    """Error function by Abramowitz & Stegun 7.1.26, to 1.5e-7."""
    t = _quotient(1.0, 1.0 + 0.3275911 * tl.abs(x))
    p = (1.061405429 * t - 1.453152027) * t + 1.421413741
    p = ((p * t - 0.284496736) * t + 0.254829592) * t
    size = 1.0 - p * _exp(-(x * x))
    return {signed}
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


def fast_values(kernel: LoopKernel) -> frozenset[int]:
    """Return the ids of the values that may be computed faster, and a little less exactly.

    These reach results of 16 bits or fewer only, and no small error in them becomes a step on the
    way.
    """
    values = kernel.values()
    wide = [p.dtype for p in kernel.outputs if p.dtype.is_floating_point and p.dtype not in NARROW]
    exact = {
        id(store.value)
        for store in kernel.stores
        if (wide if store.partial else kernel.outputs[store.param].dtype in wide)
    }
    for value in reversed(values):  # users first
        if id(value) in exact or _steps(value):
            exact.update(id(operand) for operand in value.operands)
    return frozenset(id(value) for value in values) - exact


def flushed_exponentials(kernel: LoopKernel, fast: frozenset[int]) -> frozenset[int]:
    """Return the ids of the float32 exponentials that may be flushed to zero below 1.2e-38.

    What is so small counts for nothing beside the 1 that a sum of exp(x - max(x)) has, and in a
    result of 16 bits, unless a logarithm, a root or a division by it makes much of it.
    """
    values = kernel.values()
    users: dict[int, list[Value]] = {}
    enlarged: set[int] = set()
    for value in reversed(values):  # users first
        for place, operand in enumerate(value.operands):
            users.setdefault(id(operand), []).append(value)
            above = id(value) in enlarged and not _drowns(value, operand)
            if above or _enlarges(value, place):
                enlarged.add(id(operand))
    stored = {id(store.value) for store in kernel.stores}
    found = set()
    for value in values:
        if _is_exponential(value):
            above_it = users.get(id(value), [])
            only_summed = id(value) not in stored and all(_drowns(u, value) for u in above_it)
            if only_summed or (id(value) in fast and id(value) not in enlarged):
                found.add(id(value))
    return frozenset(found)


def _is_exponential(value: Value) -> bool:
    return isinstance(value, Apply) and value.primitive == "exp" and value.dtype == torch.float32


def _enlarges(value: Value, place: int) -> bool:
    """Whether an operand near zero makes for a result far from it."""
    if not isinstance(value, Apply):
        return False
    return value.primitive in _ENLARGE or (value.primitive == "div" and place == 1)


def _drowns(value: Value, operand: Value) -> bool:
    """Whether the smallest floats are lost in a sum, beside a number or the largest's exponential.

    A sum of exp(x - max(x)) has a term of 1 if it runs over the axes of the maximum.
    """
    match value:
        case Apply(primitive="add", args=(a, b)):
            other = b if operand is a else a
            return isinstance(other, Number) and _is_away_from_zero(other.value)
        case Fold(over=over):
            pair = softmax_pair(value)
            return pair is not None and pair.maximum.over == over
    return False


def _is_away_from_zero(number: object) -> bool:
    return isinstance(number, (int, float)) and abs(number) > 1e-20


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
    if isinstance(divisor, Number) and _is_away_from_zero(divisor.value):
        return f"({texts[0]} * {1.0 / divisor.value!r})"
    if not divisor.axes & inner_axes and value.axes & inner_axes:
        return f"({texts[0]} * (1.0 / {texts[1]}))"  # one division a row, not one an element
    return f"_quotient({texts[0]}, {texts[1]})"


def helper_functions(lines: list[str], *, interpreted: bool) -> str:
    """Return the text of the functions above that some statements call."""
    body = "\n".join(lines)
    wanted = {name for name in HELPERS if f"{name}(" in body}
    if wanted & {"_tanh", "_erf"}:
        wanted |= {"_quotient", "_exp"}
    spellings = {
        "divide": ("libdevice.fast_dividef(a, b)", "a / b"),
        "exponential": ("libdevice.fast_expf(x)", "tl.exp(x)"),
        "signed": ("libdevice.copysign(size, x)", "tl.where(x < 0.0, -size, size)"),
    }
    chosen = {name: texts[interpreted] for name, texts in spellings.items()}
    found = [HELPERS[name].format(**chosen) for name in HELPERS if name in wanted]
    for size in (1, 2, 4, 8):
        if f"_anew_{size}(" in body:
            register = {"bits": 64, "kind": "l"} if size == 8 else {"bits": 32, "kind": "r"}
            move = "x" if interpreted else _MOVE.format(pack=max(1, 4 // size), **register)
            found.append(_ANEW.format(size=size, result=move))
    return "\n".join(found)
