"""Adding calls to a graph, with metadata that is true from the start."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree


def insert_call(
    graph: fx.Graph, target: OpOverload, args: tuple[Any, ...], like: fx.Node, **kwargs: Any
) -> fx.Node:
    """Add a call at the graph's insertion point; `like` lends it its place in the user's code.

    A call without tensors gives fake ones where `like` has them.
    """
    made = graph.call_function(target, args, kwargs)
    given = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    fakes = [n.meta["val"] for n in made.all_input_nodes] or pytree.tree_leaves(like.meta["val"])
    mode = next((f.fake_mode for f in fakes if isinstance(f, FakeTensor)), None)
    with torch.no_grad():
        if mode is None:
            made.meta["val"] = target(*given[0], **given[1])
        else:
            with mode:
                made.meta["val"] = target(*given[0], **given[1])
    for key in ("stack_trace", "nn_module_stack"):
        if key in like.meta:
            made.meta[key] = like.meta[key]
    return made
