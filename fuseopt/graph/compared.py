"""What a graph compares: numbers that must be the very same wherever they are used.

    y = silu(x); m = amax(y)  ...  mask = eq(y, m)

In one kernel y is float32 and as exact as it gets, in another it has been stored in 16 bits;
computed again it may differ in its last bit. Then nothing equals the maximum, and a gradient
divides zero by zero. So y and m are rounded where they are made, if to 16 bits, they are not made
again in another kernel, and a backward graph that compares them has them saved.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fuseopt.graph.form import is_view
from fuseopt.graph.lift import COMPARED
from fuseopt.graph.pieces import is_backward

aten = torch.ops.aten

COMPARISONS = frozenset(getattr(aten, n).Tensor for n in ("eq", "ne", "lt", "le", "gt", "ge"))
# What these give of a number is the same whoever computes it.
_EXACT = frozenset({aten.abs.default, aten.neg.default, aten.relu.default})


def mark_compared(graph: fx.Graph) -> None:
    """Mark what the comparisons of floating-point tensors with each other are made of."""
    for _, origins in _comparisons(graph):
        for node in origins:
            node.meta[COMPARED] = True


def save_compared(graph: fx.Graph) -> None:
    """Have what a joint graph compares, or the outcome, saved for the backward graph that needs it.

    What a checkpoint makes again stays so where that is the whole comparison.
    """
    for comparison, origins in _comparisons(graph):
        wanted = origins if is_backward(comparison) else [comparison]
        if not all(is_backward(n) or _is_checkpointed(n) for n in wanted):
            for node in wanted:
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _is_checkpointed(node: fx.Node) -> bool:
    again = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
    return "ac_graph_id" in node.meta and node.meta.get("recompute") in again


def _comparisons(graph: fx.Graph) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """Yield the comparisons of floating-point tensors, each with what its operands come from."""
    for node in graph.nodes:
        operands = [n for n in node.args if isinstance(n, fx.Node)]
        if node.target not in COMPARISONS or len(operands) != 2:
            continue
        if all(map(_is_floating_point, operands)):
            yield node, [_origin(n) for n in operands]


def _origin(node: fx.Node) -> fx.Node:
    """The node that a value comes from by views, wider dtypes and other steps without rounding."""
    while node.op == "call_function" and _is_exact(node):
        node = node.all_input_nodes[0]
    return node


def _is_exact(node: fx.Node) -> bool:
    if not node.all_input_nodes or not _is_floating_point(node.all_input_nodes[0]):
        return False
    if node.target is aten._to_copy.default:
        before, after = (_dtype(n) for n in (node.all_input_nodes[0], node))
        return torch.promote_types(before, after) == after
    return node.target in _EXACT or is_view(node)


def _is_floating_point(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _dtype(node: fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype
