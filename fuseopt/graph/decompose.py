"""Splitting a reduced loss in the losses of the rows, which are one pass, and their mean.

    cross_entropy_loss(x, t)  ->  rows = cross_entropy_loss(x, t, reduction=none)
                                  sum(rows) / sum(t != ignore_index)

The two reduce over different axes, so that they cannot be one kernel; apart, each is one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fuseopt.graph.insert import insert_call
from fuseopt.graph.lift import bind_arguments, target_name

aten = torch.ops.aten
_DEFAULTS = (None, None, None, 1, -100, 0.0)


def split_losses(gm: fx.GraphModule) -> int:
    """Split the reduced cross-entropies of a graph in place and return how many there were."""
    count = 0
    for node in list(gm.graph.nodes):
        if target_name(node) != "aten.cross_entropy_loss.default":
            continue
        args, _ = bind_arguments(node)
        args = (*args, *_DEFAULTS[len(args) :])
        if args[3] != 0 and _has_class_targets(args):
            _split(gm.graph, node, args)
            count += 1
    if count:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return count


def _has_class_targets(args: tuple[Any, ...]) -> bool:
    logits, target = args[0].meta["val"], args[1].meta["val"]
    return bool(not target.dtype.is_floating_point and logits.numel() != 0 and logits.dim() > 1)


def _split(graph: fx.Graph, node: fx.Node, args: tuple[Any, ...]) -> None:
    logits, target, weight, reduction, ignored, smoothing = args
    dtype = node.meta["val"].dtype
    with graph.inserting_before(node):
        wide = logits
        if dtype not in (torch.float32, torch.float64):
            wide = insert_call(graph, aten._to_copy.default, (logits,), node, dtype=torch.float32)
            if weight is not None:
                kind = torch.float32
                weight = insert_call(graph, aten._to_copy.default, (weight,), node, dtype=kind)
        given = (wide, target, weight, 0, ignored, smoothing)
        rows = insert_call(graph, aten.cross_entropy_loss.default, given, node)
        result = insert_call(graph, aten.sum.default, (rows,), node)
        if reduction == 1:
            total = _weight_of_rows(graph, node, target, weight, ignored)
            result = insert_call(graph, aten.div.Tensor, (result, total), node)
        if wide is not logits:
            result = insert_call(graph, aten._to_copy.default, (result,), node, dtype=dtype)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _weight_of_rows(
    graph: fx.Graph, node: fx.Node, target: fx.Node, weight: fx.Node | None, ignored: int
) -> fx.Node:
    kept = insert_call(graph, aten.ne.Scalar, (target, ignored), node)
    if weight is None:
        return insert_call(graph, aten.sum.default, (kept,), node)
    zero = insert_call(graph, aten.zeros_like.default, (target,), node)
    inside = insert_call(graph, aten.where.self, (kept, target, zero), node)
    picked = insert_call(graph, aten.index.Tensor, (weight, [inside]), node)
    masked = insert_call(graph, aten.mul.Tensor, (picked, kept), node)
    return insert_call(graph, aten.sum.default, (masked,), node)
