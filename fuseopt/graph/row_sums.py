"""The sum of a row of a gradient, known from how the gradient was made.

    dy = where(column == t, a, 0) + b.expand(n) * w       sum(dy) = a + b * sum(w)

with `a` and `b` one number a row. What is expanded, or has one element that is not zero, is not
read to be summed: the backward of log-softmax then needs no pass over the row before it writes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fuseopt.graph.pieces import Pieces, sizes
from fuseopt.ir import dims

aten = torch.ops.aten


def sum_along(p: Pieces, x: fx.Node, dim: int) -> fx.Node:
    """Sum a float tensor along a dimension, which stays with size 1."""
    return _known_sum(p, x, dim) or p.sum(p.wide(x), [dim])


def _known_sum(p: Pieces, x: Any, dim: int) -> fx.Node | None:
    """The sum where it takes no reading of `x`."""
    if (x, dim) in p.known.sums:
        return p.known.sums[x, dim]
    if not isinstance(x, fx.Node) or x.op != "call_function" or not x.args:
        return None
    first = x.args[0]
    second = x.args[1] if len(x.args) > 1 else None
    match x.target:
        case aten.neg.default:
            made = _known_sum(p, first, dim)
            return made and p.neg(made)
        case aten._to_copy.default:
            return _known_sum(p, first, dim)
        case aten.expand.default:
            return _expanded_sum(p, x, dim)
        case aten.add.Tensor if not x.kwargs and _same_shape(x, first) and _same_shape(x, second):
            a, b = _known_sum(p, first, dim), _known_sum(p, second, dim)
            return p.add(a, b) if a and b else None
        case aten.mul.Tensor | aten.mul.Scalar | aten.div.Tensor | aten.div.Scalar:
            return _product_sum(p, x, dim)
    return None


def _expanded_sum(p: Pieces, x: fx.Node, dim: int) -> fx.Node | None:
    source = x.args[0]
    assert isinstance(source, fx.Node)
    given, size = sizes(source), sizes(x)[dim]
    if len(given) != len(sizes(x)) or given[dim] != 1 or not isinstance(size, int):
        return None
    return p.mul(p.wide(source), size)


def _product_sum(p: Pieces, x: fx.Node, dim: int) -> fx.Node | None:
    """The sum of a product, one factor of which is constant along the row."""
    first, second = x.args[0], x.args[1]
    divides = x.target in (aten.div.Tensor, aten.div.Scalar)
    if not isinstance(second, fx.Node) or not isinstance(second.meta["val"], torch.Tensor):
        made = _known_sum(p, first, dim)
        return made and (p.div if divides else p.mul)(made, second)
    if divides:
        return None
    for constant, other in ((first, second), (second, first)):
        if not isinstance(constant, fx.Node) or not isinstance(other, fx.Node):
            continue
        if len(sizes(constant)) != len(sizes(x)):  # its dimensions have other numbers
            continue
        once = _once_a_row(constant, dim)
        is_vector = len(sizes(other)) == len(sizes(x)) and all(
            size == 1 for place, size in enumerate(sizes(other)) if place != dim
        )
        if once is not None and is_vector and dims.same(sizes(x)[dim], sizes(other)[dim]):
            return p.mul(p.wide(once), p.sum(p.wide(other), [dim]))
    return None


def _once_a_row(x: fx.Node, dim: int) -> fx.Node | None:
    """What a node is expanded from along a dimension."""
    if x.target is not aten.expand.default:
        return None
    source = x.args[0]
    assert isinstance(source, fx.Node)
    given = sizes(source)
    return source if len(given) == len(sizes(x)) and given[dim] == 1 else None


def _same_shape(x: fx.Node, other: Any) -> bool:
    return isinstance(other, fx.Node) and dims.same_shape(sizes(x), sizes(other))
