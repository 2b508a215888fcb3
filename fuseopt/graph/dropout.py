"""Dropout in graphs that are yet to be traced: what drops nothing, and what writes in place.

    y = dropout(x, 0.1, training=False); y.mul_(3)   ->   x.mul_(3)

Eager PyTorch returns the input itself, while tracing takes such a dropout for a copy: a kernel
that is not needed, and writes to the result that no longer reach the input.

    y = dropout(linear(x, w), 0.1, inplace=True)     ->   y = dropout(linear(x, w), 0.1)

Traced in place it is random numbers and a division, no dropout. Where nobody reads the memory that
it writes to by another name, it is the same as one that writes to memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch.utils import _pytree as pytree

from fuseopt.graph.form import copy_graph

aten = torch.ops.aten

# Each takes (input, p, training), by position or name; the value is the default of `training`.
_DROPOUTS: dict[Any, bool] = {
    F.dropout: True,
    F.dropout1d: True,
    F.dropout2d: True,
    F.dropout3d: True,
    F.alpha_dropout: False,
    F.feature_alpha_dropout: False,
    torch.dropout: True,
    torch.feature_dropout: True,
    torch.alpha_dropout: True,
    torch.feature_alpha_dropout: True,
    aten.dropout.default: True,
    aten.feature_dropout.default: True,
    aten.alpha_dropout.default: True,
    aten.feature_alpha_dropout.default: True,
}


def without_idle_dropout(gm: fx.GraphModule) -> fx.GraphModule:
    """Return the graph with idle dropouts replaced by their input, itself where there are none.

    `gm` is not changed.
    """
    if not any(is_idle_dropout(node) for node in gm.graph.nodes):
        return gm
    gm = copy_graph(gm)
    for node in list(gm.graph.nodes):
        if is_idle_dropout(node):
            node.replace_all_uses_with(_argument(node, 0, "input", None))
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


def is_idle_dropout(node: fx.Node) -> bool:
    """Whether a node is a dropout that returns its input."""
    if node.op != "call_function" or node.target not in _DROPOUTS:
        return False
    by_default = _DROPOUTS[node.target]
    name = "training" if "training" in node.kwargs else "train"
    training = _argument(node, 2, name, by_default)
    rate = _argument(node, 1, "p", 0.5)
    return training is False or (isinstance(rate, (int, float)) and rate == 0)


def _argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def with_dropout_out_of_place(
    gm: fx.GraphModule, has_kernels: Callable[[torch.device], bool]
) -> fx.GraphModule:
    """Return the graph without the in-place dropouts that need not be so, or itself.

    `gm` is not changed. has_kernels: whether kernels, which draw dropouts, run on a device.
    """
    places = [n for n, node in enumerate(gm.graph.nodes) if _may_be_elsewhere(node, has_kernels)]
    if not places:
        return gm
    gm = copy_graph(gm)
    nodes = list(gm.graph.nodes)
    for node in (nodes[place] for place in places):
        args = tuple(_argument(node, n, name, None) for n, name in enumerate(("input", "p")))
        node.target, node.args, node.kwargs = F.dropout, (*args, True), {}
    gm.recompile()
    return gm


def _may_be_elsewhere(node: fx.Node, has_kernels: Callable[[torch.device], bool]) -> bool:
    in_place = node.target is F.dropout and bool(_argument(node, 3, "inplace", False))
    if not in_place and node.target is not torch.dropout_:
        return False
    written = node.all_input_nodes[0]
    value = written.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or not has_kernels(value.device):
        return False
    order = {other: place for place, other in enumerate(node.graph.nodes)}
    return not any(
        other.op in ("placeholder", "get_attr")
        or any(order[user] > order[node] for user in other.users)
        for other in order
        if order[other] < order[node] and _shares_memory(other, value)
    )


def _shares_memory(node: fx.Node, value: torch.Tensor) -> bool:
    place = value.untyped_storage()._cdata
    given = pytree.tree_leaves(node.meta.get("example_value"))
    return any(isinstance(t, torch.Tensor) and t.untyped_storage()._cdata == place for t in given)
