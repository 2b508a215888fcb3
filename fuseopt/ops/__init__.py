"""What each ATen operation means, in primitives: one declaration an op."""

from fuseopt.ops import activations, create, gather, losses, norms, pointwise, reductions, views
from fuseopt.ops.declare import OPS, Call, NotExpressible, OpDef, TensorMeta

__all__ = [
    "OPS",
    "Call",
    "NotExpressible",
    "OpDef",
    "TensorMeta",
    "activations",
    "create",
    "gather",
    "losses",
    "norms",
    "pointwise",
    "reductions",
    "views",
]
