"""What a graph's nodes do besides giving values: draws of random numbers, writes, printing.

    rand -> normal_ -> bernoulli        run in the order in which they are written

Reordered, they would give other results, so each waits for the one before it as for a value it
reads.
"""

from __future__ import annotations

import itertools

import torch
from torch import fx
from torch._ops import OpOverload


def has_effect(node: fx.Node) -> bool:
    """Whether it matters when a node runs, and that it does."""
    if node.op != "call_function":
        return False
    target = node.target
    if not isinstance(target, OpOverload):
        return getattr(target, "__module__", "") != "_operator"
    return (
        writes(node)
        or torch.Tag.nondeterministic_seeded in target.tags
        or (not target._schema.returns)
    )


def writes(node: fx.Node) -> bool:
    """Whether a node writes to a tensor that it is given."""
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def next_effects(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Return, for each node with an effect but the last, the one that waits for it."""
    return dict(itertools.pairwise(filter(has_effect, graph.nodes)))
