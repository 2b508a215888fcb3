"""The scalar functions that kernels are made of: a meaning in PyTorch and a spelling in Triton.

A primitive takes operands of one dtype (`where` takes a condition first) and gives that dtype, or
bool. Conversions are not primitives. A spelling names operands {0}, {1}, {2}. A spelling that
starts with "libdevice." has no counterpart in Triton's interpreter: there the PyTorch function runs
on the values instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fuseopt.ir.philox import random_bits


@dataclass(frozen=True, slots=True)
class Primitive:
    """One scalar function.

    function: the same function on PyTorch tensors.
    spelling: the Triton expression.
    kinds: the dtype kinds it accepts: "f" floating point, "i" integers, "b" bool.
    gives_bool: the result is bool whatever the operands are.
    commutative: the first two operands may be exchanged.
    domain: the range that generated tests draw floating-point operands from.
    """

    name: str
    arity: int
    function: Callable[..., Any]
    spelling: str
    kinds: str = "f"
    gives_bool: bool = False
    commutative: bool = False
    domain: tuple[float, float] = (-4.0, 4.0)

    @property
    def needs_libdevice(self) -> bool:
        """Whether the spelling calls NVIDIA's math library."""
        return "libdevice." in self.spelling


PRIMITIVES: dict[str, Primitive] = {}


def _declare(name: str, arity: int, function: Any, spelling: str, **facts: Any) -> None:
    PRIMITIVES[name] = Primitive(name, arity, function, spelling, **facts)


def _libdevice(name: str, arity: int, function: Any, **facts: Any) -> None:
    operands = ", ".join(f"{{{i}}}" for i in range(arity))
    _declare(name, arity, function, f"libdevice.{name}({operands})", **facts)


# Arithmetic.
_declare("add", 2, operator.add, "({0} + {1})", kinds="fi", commutative=True)
_declare("sub", 2, operator.sub, "({0} - {1})", kinds="fi")
_declare("mul", 2, operator.mul, "({0} * {1})", kinds="fi", commutative=True)
_declare("div", 2, operator.truediv, "({0} / {1})", domain=(0.5, 4.0))
# Triton's own minus subtracts from zero, which makes 0.0 of 0.0.
_declare("neg", 1, operator.neg, "({0} * -1)", kinds="fi")
_declare("abs", 1, torch.abs, "tl.abs({0})", kinds="fi")
_declare(
    "trunc_div", 2, lambda a, b: torch.div(a, b, rounding_mode="trunc"), "({0} // {1})", kinds="i"
)
_declare("rem", 2, torch.fmod, "({0} % {1})", kinds="i")  # sign of the dividend, as in C
_declare(
    "maximum",
    2,
    torch.maximum,
    "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    kinds="fi",
    commutative=True,
)
_declare(
    "minimum",
    2,
    torch.minimum,
    "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    kinds="fi",
    commutative=True,
)
_declare("fmax", 2, torch.fmax, "tl.maximum({0}, {1})", kinds="f", commutative=True)
_declare("fmin", 2, torch.fmin, "tl.minimum({0}, {1})", kinds="f", commutative=True)

# Comparisons, logic and bits.
for _name, _sign in (
    ("eq", "=="),
    ("ne", "!="),
    ("lt", "<"),
    ("le", "<="),
    ("gt", ">"),
    ("ge", ">="),
):
    _declare(
        _name,
        2,
        getattr(operator, _name),
        f"({{0}} {_sign} {{1}})",
        kinds="fib",
        gives_bool=True,
        commutative=_name in ("eq", "ne"),
    )
_declare("and", 2, operator.and_, "({0} & {1})", kinds="ib", commutative=True)
_declare("or", 2, operator.or_, "({0} | {1})", kinds="ib", commutative=True)
_declare("xor", 2, operator.xor, "({0} ^ {1})", kinds="ib", commutative=True)
_declare("not", 1, operator.invert, "(~{0})", kinds="ib")
_declare("shift_left", 2, operator.lshift, "({0} << {1})", kinds="i")
_declare("shift_right", 2, operator.rshift, "({0} >> {1})", kinds="i")
_declare("random_bits", 2, random_bits, "_random_bits({0}, ({1} >> 2), ({1} & 3))", kinds="i")
_declare("is_nan", 1, torch.isnan, "({0} != {0})", gives_bool=True)
_declare("where", 3, torch.where, "tl.where({0}, {1}, {2})", kinds="fib")

# Exponentials, powers, roots.
_declare("exp", 1, torch.exp, "tl.exp({0})")
_declare("exp2", 1, torch.exp2, "tl.exp2({0})")
_declare("log", 1, torch.log, "tl.log({0})", domain=(0.01, 8.0))
_declare("log2", 1, torch.log2, "tl.log2({0})", domain=(0.01, 8.0))
_declare("sqrt", 1, torch.sqrt, "tl.sqrt({0})", domain=(0.0, 8.0))
_declare("rsqrt", 1, torch.rsqrt, "tl.rsqrt({0})", domain=(0.01, 8.0))
_libdevice("expm1", 1, torch.expm1)
_libdevice("log1p", 1, torch.log1p, domain=(-0.9, 8.0))
_libdevice("log10", 1, torch.log10, domain=(0.01, 8.0))
_libdevice("pow", 2, torch.pow, domain=(0.1, 3.0))

# Trigonometric and hyperbolic functions, error function.
_declare("sin", 1, torch.sin, "tl.sin({0})")
_declare("cos", 1, torch.cos, "tl.cos({0})")
_declare("erf", 1, torch.erf, "tl.erf({0})")
for _name, _function, _domain in (
    ("tan", torch.tan, (-1.5, 1.5)),
    ("asin", torch.asin, (-1.0, 1.0)),
    ("acos", torch.acos, (-1.0, 1.0)),
    ("atan", torch.atan, (-4.0, 4.0)),
    ("sinh", torch.sinh, (-4.0, 4.0)),
    ("cosh", torch.cosh, (-4.0, 4.0)),
    ("tanh", torch.tanh, (-4.0, 4.0)),
    ("asinh", torch.asinh, (-4.0, 4.0)),
    ("acosh", torch.acosh, (1.0, 8.0)),
    ("atanh", torch.atanh, (-0.99, 0.99)),
    ("erfc", torch.erfc, (-4.0, 4.0)),
):
    _libdevice(_name, 1, _function, domain=_domain)
_libdevice("atan2", 2, torch.atan2)
_libdevice("fmod", 2, torch.fmod, domain=(0.5, 4.0))
_libdevice("copysign", 2, torch.copysign)

# Rounding to whole numbers.
_declare("floor", 1, torch.floor, "tl.floor({0})")
_declare("ceil", 1, torch.ceil, "tl.ceil({0})")
_libdevice("trunc", 1, torch.trunc)
_declare("round", 1, torch.round, "libdevice.rint({0})")  # halves to even
