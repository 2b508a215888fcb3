"""Dropout by seeds: kernels draw the mask where they need it, forward and backward alike.

    y, mask = native_dropout(x, 0.1, True)       (s,) = dropout_seeds(1, cuda)
    gx = native_dropout_backward(gy, mask, c) -> keep = dropout_keep(s, shape, 0.1)
                                                 y = x * keep * c;  gx = gy * keep * c

A mask is a function of its seed, so the backward graph computes it again and only seeds are saved.
All seeds of a call are drawn at once from the device's generator: `torch.manual_seed` repeats
them, each call has others, and what runs again from a saved random state, as a checkpoint does,
drops the same elements. Numbers differ from those that PyTorch's own dropout draws.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from fuseopt.graph.form import copy_graph
from fuseopt.graph.insert import insert_call
from fuseopt.graph.lift import bind_arguments, target_name, tensors_of
from fuseopt.ops.declare import SUPPORTED_DTYPES
from fuseopt.ops.dropout import DRAW_SEEDS, KEEP

aten = torch.ops.aten

# Each takes (input, p, train).
_DROPOUTS = ("aten.native_dropout.default", "aten.dropout.default")
# What the partitioner reads of a node: what a checkpoint says of it, which one, and its side.
_MARKS = ("recompute", "ac_graph_id", "partitioner_tag")


def seed_dropouts(gm: fx.GraphModule, has_kernels: Callable[[torch.device], bool]) -> int:
    """Rewrite the dropouts of a graph in place and return how many there were.

    has_kernels: whether kernels run on a device; elsewhere PyTorch's dropout stays.
    """
    by_device: dict[torch.device, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        if _drops(node) and has_kernels(tensors_of(node)[0].device):
            by_device.setdefault(tensors_of(node)[0].device, []).append(node)
    for device, nodes in by_device.items():
        _seed(gm.graph, device, nodes)
    if by_device:
        gm.recompile()
    return sum(map(len, by_device.values()))


def drop_unused_seeds(gm: fx.GraphModule) -> None:
    """Remove draws that a graph does not use.

    A partitioner copies what depends on no input into both of its parts.
    """
    for node in gm.graph.find_nodes(op="call_function", target=DRAW_SEEDS):
        if not node.users:
            gm.graph.erase_node(node)
    gm.recompile()


def with_native_dropout(gm: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of a graph with PyTorch's dropout in place of seeds: what to time against.

    Its masks are others, and a gradient is scaled by one drawn anew: as much work as by one read.
    """
    gm = copy_graph(gm)
    for keep in gm.graph.find_nodes(op="call_function", target=KEEP):
        for kept in [u for u in keep.users if u.target is aten.mul.Tensor]:
            scaled = [u for u in kept.users if u.target is aten.mul.Tensor]
            if kept.args[1] is keep and len(scaled) == len(kept.users) == 1:
                _put_native(gm.graph, keep, kept, scaled[0])
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def _put_native(graph: fx.Graph, keep: fx.Node, kept: fx.Node, scaled: fx.Node) -> None:
    with graph.inserting_before(scaled):
        args = (kept.args[0], keep.args[2], True)
        native = graph.call_function(aten.native_dropout.default, args)
        result = graph.call_function(operator.getitem, (native, 0))
    scaled.replace_all_uses_with(result)
    graph.erase_node(scaled)


def _drops(node: fx.Node) -> bool:
    if target_name(node) not in _DROPOUTS:
        return False
    (x, p, train), _ = bind_arguments(node)
    value = x.meta["val"]
    return (
        train is not False
        and isinstance(p, (int, float))
        and p > 0
        and value.dtype in SUPPORTED_DTYPES
        and value.dtype.is_floating_point
        and value.layout == torch.strided
        and not any(isinstance(s, int) and s == 0 for s in value.shape)
        and _product_of(value).stride() == tensors_of(node)[0].stride()
    )


def _product_of(value: torch.Tensor) -> torch.Tensor:
    mask = torch.empty_like(value, dtype=torch.bool, memory_format=torch.contiguous_format)
    with torch.no_grad():
        return value * mask


def _seed(graph: fx.Graph, device: torch.device, nodes: list[fx.Node]) -> None:
    with graph.inserting_before(nodes[0]):
        seeds = insert_call(graph, DRAW_SEEDS, (len(nodes), device), nodes[0])
        each = [graph.call_function(operator.getitem, (seeds, n)) for n in range(len(nodes))]
    for node, seed, value in zip(nodes, each, seeds.meta["val"], strict=True):
        seed.meta["val"] = value
        _rewrite(graph, node, seed)


def _rewrite(graph: fx.Graph, node: fx.Node, seed: fx.Node) -> None:
    (x, p, _), _ = bind_arguments(node)
    with graph.inserting_before(node):
        shape = [_size(graph, x, d) for d in range(x.meta["val"].dim())]
        keep = insert_call(graph, KEEP, (seed, shape, float(p)), node)
    _mark(keep, node)
    keep.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    kept = _scaled(graph, node, x, keep, 0.0 if p == 1 else 1.0 / (1.0 - p))
    if target_name(node) == "aten.dropout.default":
        node.replace_all_uses_with(kept)
    for user in list(node.users):
        user.replace_all_uses_with(kept if user.args[1] == 0 else keep)
        graph.erase_node(user)
    graph.erase_node(node)
    for user in list(keep.users):
        if target_name(user) == "aten.native_dropout_backward.default":
            grad, _, scale = user.args
            user.replace_all_uses_with(_scaled(graph, user, grad, keep, scale))
            graph.erase_node(user)


def _size(graph: fx.Graph, x: fx.Node, dim: int) -> Any:
    size = x.meta["val"].shape[dim]
    return size if isinstance(size, int) else insert_call(graph, aten.sym_size.int, (x, dim), x)


def _scaled(graph: fx.Graph, node: fx.Node, x: Any, keep: fx.Node, scale: Any) -> fx.Node:
    """Add x * keep * scale in a node's place. A NaN or infinity that is dropped gives NaN."""
    with graph.inserting_before(node):
        kept = insert_call(graph, aten.mul.Tensor, (x, keep), node)
        made = insert_call(graph, aten.mul.Tensor, (kept, scale), node)
    _mark(kept, node)
    _mark(made, node)
    return made


def _mark(made: fx.Node, node: fx.Node) -> None:
    made.meta.update({mark: node.meta[mark] for mark in _MARKS if mark in node.meta})
