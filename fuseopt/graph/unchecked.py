"""References without operations that refuse some values, to run on inputs that are drawn.

    binary_cross_entropy(x, t)      ->      mean((t - 1) * max(log1p(-x), -100) - t * ...)

PyTorch raises an error where x or t lies outside of [0, 1] or is NaN; on a GPU an assertion fails,
after which the process can no longer use the device. In pieces, such a value gives NaN.
"""

from __future__ import annotations

from torch import fx

from fuseopt.graph.form import copy_graph
from fuseopt.graph.joint import write_composite
from fuseopt.graph.lift import target_name

_REFUSING = frozenset({"aten.binary_cross_entropy.default"})


def without_refusals(gm: fx.GraphModule) -> fx.GraphModule:
    """Return the graph, or a copy with pieces where it has operations that refuse values."""
    if not any(target_name(node) in _REFUSING for node in gm.graph.nodes):
        return gm
    gm = copy_graph(gm)
    for node in list(gm.graph.nodes):
        if target_name(node) in _REFUSING and not write_composite(gm.graph, node):
            raise AssertionError(f"{node.format_node()} is not written in pieces")
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm
