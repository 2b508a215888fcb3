"""What each ATen operation means, in primitives: one declaration an op."""

from fuseopt.ops import (
    activations,
    arithmetic,
    conversions,
    create,
    dropout,
    elementwise_losses,
    gather,
    logic,
    losses,
    norms,
    reductions,
    selection,
    unary,
    views,
)
from fuseopt.ops.declare import OPS, Call, NotExpressible, OpDef, TensorMeta

__all__ = [
    "OPS",
    "Call",
    "NotExpressible",
    "OpDef",
    "TensorMeta",
    "activations",
    "arithmetic",
    "conversions",
    "create",
    "dropout",
    "elementwise_losses",
    "gather",
    "logic",
    "losses",
    "norms",
    "reductions",
    "selection",
    "unary",
    "views",
]
