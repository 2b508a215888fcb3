"""Dropout that drops nothing is its input, in graphs that are yet to be traced.

    y = dropout(x, 0.1, training=False); y.mul_(3)   ->   x.mul_(3)

Eager PyTorch returns the input itself, while tracing takes such a dropout for a copy: a kernel
that is not needed, and writes to the result that no longer reach the input.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

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
