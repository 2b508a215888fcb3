"""Size symbols of dynamic graphs: which node holds the number that a symbol stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def size_nodes(
    graph: fx.Graph, symbols: Iterable[Any], tensors: Sequence[fx.Node]
) -> tuple[fx.Node, ...]:
    """Return a node for the value of each symbol, adding `aten.sym_size` where there is none.

    tensors: nodes whose shapes are made of the symbols.
    Raises `LookupError` for a symbol that is no dimension of any of them.
    """
    return tuple(_size_node(graph, symbol, tensors) for symbol in symbols)


def _size_node(graph: fx.Graph, symbol: Any, tensors: Sequence[fx.Node]) -> fx.Node:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == symbol:
            return node
    for tensor in tensors:
        for dim, size in enumerate(tensor.meta["val"].shape):
            if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                with graph.inserting_after(tensor):
                    made = graph.call_function(aten.sym_size.int, (tensor, dim))
                made.meta["val"] = size
                return made
    raise LookupError(f"no tensor of the region has a dimension of size {symbol}")


def hint_of(node: fx.Node) -> int:
    """Return the example value of a size node."""
    return int(node.meta["val"].node.hint)
