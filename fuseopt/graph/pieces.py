"""Writing a composite op as the ATen calls that it is made of, in the graph.

    @composite("aten._softmax.default", samples=[...])
    def softmax(p, x, dim, half_to_float):
        x = p.wide(x)
        grown = p.exp(p.sub(x, p.amax(x, [dim])))
        return p.div(grown, p.sum(grown, [dim]))

A writer receives a `Pieces` and the op's arguments with nodes in place of tensors, and returns a
node for each output, or None for one that it leaves out. It computes in float32 where the op takes
16-bit floats; what it returns is converted to the op's dtypes. It returns NotImplemented for a
call that is to stay as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from fuseopt.graph.insert import insert_call
from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ops.declare import Sample, compute_dtype

aten = torch.ops.aten
# What describes one node alone; the rest of its metadata goes to the pieces.
_OWN = frozenset({"val", "tensor_meta", "from_node", "unbacked_bindings"})
Writer = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Composite:
    """An op that is written in pieces. samples: example calls; tests are made from these."""

    target: str
    write: Writer
    samples: tuple[Sample, ...]


COMPOSITES: dict[str, Composite] = {}


def composite(*targets: str, samples: Sequence[Sample] = ()) -> Callable[[Writer], Writer]:
    """Declare the decorated writer for the given ATen overloads, which the samples suit."""

    def declare(write: Writer) -> Writer:
        for target in targets:
            if target in COMPOSITES:
                raise AssertionError(f"{target} is written twice")
            COMPOSITES[target] = Composite(target, write, tuple(samples))
        return write

    return declare


@dataclass(slots=True)
class Known:
    """What the pass knows of the nodes that it has written, for those it writes after them.

    unrounded: by a 16-bit result, the float32 node it was rounded from.
    sums: by (node, dimension), a node that holds its sum along that dimension, kept with size 1.
    """

    unrounded: dict[fx.Node, fx.Node] = field(default_factory=dict)
    sums: dict[tuple[fx.Node, int], fx.Node] = field(default_factory=dict)


class Pieces:
    """Adds calls at a graph's insertion point, with the place and the tags of the node `origin`."""

    def __init__(self, graph: fx.Graph, origin: fx.Node, known: Known) -> None:
        self.graph = graph
        self.origin = origin
        self.known = known

    def __call__(self, target: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
        """Add any call."""
        made = insert_call(self.graph, target, args, self.origin, **kwargs)
        made.meta.update({k: v for k, v in self.origin.meta.items() if k not in _OWN})
        return made

    def again(self, x: fx.Node) -> fx.Node:
        """Have a node that the backward graph needs computed again there, rather than saved.

        What a checkpoint says of it goes before.
        """
        x.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)
        return x

    def is_needed_later(self) -> bool:
        """Whether the backward graph uses a result of the op that is written in pieces."""
        return any(is_backward(user) or _has_backward_user(user) for user in self.origin.users)

    # --- dtypes and sizes ----------------------------------------------------------------------

    def to(self, x: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Convert, where the dtype is another."""
        return x if dtype_of(x) == dtype else self(aten._to_copy.default, x, dtype=dtype)

    def wide(self, x: fx.Node) -> fx.Node:
        """Convert to the dtype that kernels compute in."""
        return self.to(x, compute_dtype(dtype_of(x)))

    def unrounded(self, x: fx.Node) -> fx.Node:
        """As `wide`, but from before the rounding of a result that this pass has written."""
        return self.known.unrounded.get(x) or self.wide(x)

    def size(self, x: fx.Node, dim: int) -> Any:
        """Return the size along a dimension: an int, or a node that holds it."""
        size = value_of(x).shape[dim]
        return size if isinstance(size, int) else self(aten.sym_size.int, x, dim)

    def numel(self, x: fx.Node) -> Any:
        """Return the number of elements: an int, or a node that holds it."""
        count = value_of(x).numel()
        return count if isinstance(count, int) else self(aten.sym_numel.default, x)

    # --- arithmetic ----------------------------------------------------------------------------

    def add(self, a: fx.Node, b: Any) -> fx.Node:
        """a + b."""
        return self(aten.add.Tensor, a, b)

    def sub(self, a: fx.Node, b: Any) -> fx.Node:
        """a - b."""
        return self(aten.sub.Tensor, a, b)

    def mul(self, a: fx.Node, b: Any) -> fx.Node:
        """a * b."""
        return self(aten.mul.Tensor, a, b)

    def div(self, a: fx.Node, b: Any) -> fx.Node:
        """a / b."""
        return self(aten.div.Tensor, a, b)

    def neg(self, x: fx.Node) -> fx.Node:
        """-x."""
        return self(aten.neg.default, x)

    def absolute(self, x: fx.Node) -> fx.Node:
        """|x|."""
        return self(aten.abs.default, x)

    def exp(self, x: fx.Node) -> fx.Node:
        """e ** x."""
        return self(aten.exp.default, x)

    def log(self, x: fx.Node) -> fx.Node:
        """Natural logarithm."""
        return self(aten.log.default, x)

    def log1p(self, x: fx.Node) -> fx.Node:
        """log(1 + x)."""
        return self(aten.log1p.default, x)

    def rsqrt(self, x: fx.Node) -> fx.Node:
        """1 / sqrt(x)."""
        return self(aten.rsqrt.default, x)

    def where(self, condition: fx.Node, a: fx.Node, b: Any) -> fx.Node:
        """`a` where the condition holds, else `b`, a node or a number."""
        if isinstance(b, fx.Node):
            return self(aten.where.self, condition, a, b)
        return self(aten.where.ScalarOther, condition, a, b)

    # --- reductions, which keep the dimensions with size 1 -------------------------------------

    def sum(self, x: fx.Node, over: Sequence[int]) -> fx.Node:
        """Sum over dimensions."""
        return self(aten.sum.dim_IntList, x, list(over), True)

    def mean(self, x: fx.Node, over: Sequence[int]) -> fx.Node:
        """Mean over dimensions."""
        return self(aten.mean.dim, x, list(over), True)

    def amax(self, x: fx.Node, over: Sequence[int]) -> fx.Node:
        """Largest element over dimensions."""
        return self(aten.amax.default, x, list(over), True)

    def moments(self, x: fx.Node, over: Sequence[int]) -> tuple[fx.Node, fx.Node]:
        """Mean, and mean of the squared distances from it."""
        both = self(aten.var_mean.correction, x, list(over), correction=0, keepdim=True)
        return self.item(both, 1), self.item(both, 0)

    # --- shapes --------------------------------------------------------------------------------

    def view(self, x: fx.Node, shape: Sequence[Any]) -> fx.Node:
        """The same elements under another shape, whose sizes may be nodes."""
        return self(aten.view.default, x, list(shape))

    def unsqueeze(self, x: fx.Node, dim: int) -> fx.Node:
        """Add a dimension of size 1."""
        return self(aten.unsqueeze.default, x, dim)

    def squeeze(self, x: fx.Node, dims: Sequence[int]) -> fx.Node:
        """Drop dimensions of size 1."""
        return self(aten.squeeze.dims, x, list(dims))

    def along(self, x: fx.Node, dim: int, rank: int) -> fx.Node:
        """Shape a vector to run along one of `rank` dimensions."""
        for place in range(rank):
            if place != dim:
                x = self.unsqueeze(x, place)
        return x

    def item(self, x: fx.Node, place: int) -> fx.Node:
        """One of several results."""
        made = self.graph.call_function(operator.getitem, (x, place))
        made.meta.update({k: v for k, v in x.meta.items() if k not in _OWN})
        made.meta["val"] = x.meta["val"][place]
        return made


def is_backward(node: fx.Node) -> bool:
    """Whether a node was traced by the backward pass."""
    return node.meta.get("partitioner_tag") == "is_backward"


def _has_backward_user(node: fx.Node) -> bool:
    return node.target is operator.getitem and any(map(is_backward, node.users))


def value_of(x: fx.Node) -> torch.Tensor:
    """Return the fake tensor of a node."""
    value = x.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


def dtype_of(x: fx.Node) -> torch.dtype:
    """Return the dtype of a node's tensor."""
    return value_of(x).dtype


def sizes(x: fx.Node) -> tuple[Size, ...]:
    """Return the shape of a node's tensor, which may be compared without adding guards."""
    return dims.shape_of(value_of(x).shape)
