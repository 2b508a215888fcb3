"""Sizes: Python ints, or sympy expressions over the size symbols of a dynamic graph.

Every symbol stands for an integer of at least one: kernels are never launched on empty tensors.
sympy is imported only once a symbolic size is met.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeAlias

Size: TypeAlias = Any  # int | sympy.Expr, spelled so that sympy need not be imported


def size_of(value: Any) -> Size:
    """Return the size that an int or a `torch.SymInt` stands for."""
    if isinstance(value, int):
        return value
    return as_size(value.node.expr)


def as_size(value: Any) -> Size:
    """Return an int where the expression is a number, the expression itself otherwise."""
    if isinstance(value, int):
        return value
    return int(value) if value.is_Integer else value


def symbol(name: str) -> Size:
    """Return the size symbol of that name."""
    import sympy

    return sympy.Symbol(name, integer=True, positive=True)


def shape_of(sizes: Iterable[Any]) -> tuple[Size, ...]:
    """Return the sizes of a tensor's shape or strides."""
    return tuple(size_of(s) for s in sizes)


def product(sizes: Iterable[Size]) -> Size:
    """Return the product, 1 for no sizes."""
    return math.prod(sizes)


def add(a: Size, b: Size) -> Size:
    """Return the sum in a normal form (expanded where symbolic)."""
    total = a + b
    return total if isinstance(total, int) else as_size(_expand(total))


def multiply(a: Size, b: Size) -> Size:
    """Return the product in a normal form (expanded where symbolic)."""
    total = a * b
    return total if isinstance(total, int) else as_size(_expand(total))


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are provably equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(a == b) or _expand(a - b) == 0


def same_shape(a: Iterable[Size], b: Iterable[Size]) -> bool:
    """Whether two shapes are provably equal."""
    left, right = tuple(a), tuple(b)
    return len(left) == len(right) and all(map(same, left, right))


def divide(a: Size, b: Size) -> Size | None:
    """Return a / b where b provably divides a, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if same(a, b):
        return 1
    import sympy

    quotient = sympy.cancel(sympy.sympify(a) / b)
    numerator, denominator = sympy.fraction(quotient)
    if denominator != 1 or not _integer_coefficients(numerator):
        return None
    return as_size(_expand(quotient))


def is_nonnegative(size: Size) -> bool:
    """Whether a size is provably at least zero when every symbol is at least one."""
    if isinstance(size, int):
        return size >= 0
    import sympy

    shifted = size.subs({s: sympy.Symbol(f"{s.name}_less_one") + 1 for s in size.free_symbols})
    expanded = sympy.expand(shifted)
    if not expanded.is_polynomial():
        return False
    return (
        all(c >= 0 for c in sympy.Poly(expanded, *expanded.free_symbols).coeffs())
        if (expanded.free_symbols)
        else bool(expanded >= 0)
    )


def symbols_in(size: Size) -> frozenset[Any]:
    """Return the size symbols that a size mentions."""
    return frozenset() if isinstance(size, int) else frozenset(size.free_symbols)


def hint(size: Size, hints: dict[Any, int]) -> int:
    """Return the size with every symbol replaced by its example value."""
    return size if isinstance(size, int) else int(size.subs(hints))


def _expand(size: Any) -> Any:
    import sympy

    return sympy.expand(size)


def _integer_coefficients(expr: Any) -> bool:
    import sympy

    if not expr.is_polynomial():
        return False
    if not expr.free_symbols:
        return bool(expr.is_Integer)
    return all(c.is_Integer for c in sympy.Poly(expr, *expr.free_symbols).coeffs())


def text(sizes: Iterable[Size]) -> str:
    """Return sizes as people write shapes: "4x1024"."""
    return "x".join(map(str, sizes)) or "()"
