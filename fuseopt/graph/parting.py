"""Parting a training graph in two: what the forward one saves, what the backward one repeats.

    h = silu(g) * u; y = mm(h, w)                saved: g and u, which the derivative of silu reads
    dw = mm(h.t(), dy); dg = ...           ->    backward: h, dg and du by one kernel; then dw

PyTorch's partitioner looks for the fewest bytes to save, and never computes again what a matrix
product of the backward graph reads, since that has to be written to memory once more. Most of it
(norms, gated activations, repeated heads) comes from tensors that are saved anyway and that a
kernel of the backward graph reads anyway, so that once more is one write, a small part of the
product's own time; saved, it stays in memory from the forward pass on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from fuseopt.graph.pieces import is_backward

aten = torch.ops.aten

# Ops that move elements and that the partitioner, whose list is of what Inductor decomposes others
# to, takes for dear. In kernels they are where an element is read.
_MOVES = (
    aten.cat.default,
    aten.constant_pad_nd.default,
    aten.flip.default,
    aten.repeat.default,
    aten.roll.default,
    aten.split_with_sizes.default,
    aten.stack.default,
    aten.transpose.int,
    aten.unbind.int,
)


SMALL = 4  # a table is so many times smaller than what it is applied to, at least


def part(
    joint: fx.GraphModule, *args: Any, **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return the forward and the backward graph of a joint one; takes what PyTorch's own takes."""
    _move_again(joint.graph)
    _apply_tables_again(joint.graph)
    with functorch_config.patch(ban_recompute_materialized_backward=False):
        return min_cut_rematerialization_partition(joint, *args, **options)


def _move_again(graph: fx.Graph) -> None:
    """Have elements moved again in the backward graph, and what they were moved from saved."""
    for node in graph.nodes:
        if node.target in _MOVES and not is_backward(node):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)


def _apply_tables_again(graph: fx.Graph) -> None:
    """Have the tables that layers share applied again in the backward graph.

        q2 = q * cos          saved: q and cos, not q2

    A table is small and computed from what is small: rotary angles, position biases, masks. The
    partitioner saves what is made of a value that is used far from its first use, lest that be kept
    until then; of a table there is nothing to fear.
    """
    largest: dict[fx.Node, int] = {}  # of a value and what it is computed from
    for node in graph.nodes:
        if is_backward(node):
            continue
        count = _count(node)
        operands = node.all_input_nodes
        largest[node] = max([count, *(largest.get(n, 0) for n in operands)])
        tables = (n for n in operands if n.op == "call_function" and n in largest)
        if _is_pointwise(node) and any(largest[n] * SMALL <= count for n in tables):
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)


def _is_pointwise(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags


def _count(node: fx.Node) -> int:
    """The number of a value's elements at the example sizes; 0 where there are none to tell."""
    value = node.meta.get("val")
    count = value.numel() if isinstance(value, torch.Tensor) else 0
    if isinstance(count, torch.SymInt):
        return int(count.node.hint) if count.node.has_hint() else 0
    return count
