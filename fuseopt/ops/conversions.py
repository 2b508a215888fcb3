"""Conversions and copies."""

from __future__ import annotations

from typing import Any

import torch

from fuseopt.ir.expr import Expr
from fuseopt.ops.declare import Call, NotExpressible, convert, expand, op, sample
from fuseopt.ops.domains import INTEGERS, ROW, X


@op("aten.to.dtype", samples=[sample(X, torch.float16), sample(X, torch.int32)])
def to_dtype(call: Call, x: Expr, *_: Any, **__: Any) -> Expr:
    """Convert to the output's dtype."""
    return convert(x, call.dtype, explicit=True)


@op(
    "aten._to_copy.default",
    samples=[sample(X, dtype=torch.bfloat16), sample(INTEGERS, dtype=torch.float32)],
)
def to_copy(call: Call, x: Expr, **_: Any) -> Expr:
    """Convert to the output's dtype, in new memory."""
    return convert(x, call.dtype, explicit=True)


@op(
    "aten.to.dtype_layout",
    "aten.to.other",
    "aten.type_as.default",
    "aten._autocast_to_full_precision.default",
    "aten._autocast_to_reduced_precision.default",
    "prims.convert_element_type.default",
)
def to_other(call: Call, x: Expr, *_: Any, **__: Any) -> Expr:
    """Convert to the output's dtype."""
    return convert(x, call.dtype, explicit=True)


@op(
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
    samples=[sample(X)],
)
def clone(call: Call, x: Expr, **_: Any) -> Expr:
    """The same values in new memory."""
    return x


@op("aten.copy.default", samples=[sample(X, ROW)])
def copy(call: Call, x: Expr, source: Expr, non_blocking: bool = False) -> Expr:
    """The source's values in the shape and dtype of x."""
    return expand(convert(source, x.dtype), x.shape)


@op("aten.dropout.default", samples=[sample(X, 0.3, False), sample(X, 0.0, True)])
def dropout(call: Call, x: Expr, p: float, train: bool) -> Expr:
    """The identity outside training or with p = 0."""
    if train and p != 0:
        raise NotExpressible("dropout in training draws random numbers")
    return x
