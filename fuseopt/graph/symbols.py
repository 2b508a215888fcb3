"""Size symbols of dynamic graphs: which node holds the number that a symbol stands for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def size_nodes(
    graph: fx.Graph, symbols: Iterable[Any], tensors: Sequence[fx.Node]
) -> tuple[fx.Node, ...]:
    """Return a node for the value of each symbol, adding `aten.sym_size` where there is none.

    tensors: nodes whose shapes and strides are made of the symbols.
    Raises `LookupError` for a symbol that is no dimension or stride of any of them.
    """
    return tuple(_size_node(graph, symbol, tensors) for symbol in symbols)


def _size_node(graph: fx.Graph, symbol: Any, tensors: Sequence[fx.Node]) -> fx.Node:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == symbol:
            return node
    for tensor in tensors:
        for op, dim, number in _numbers(tensor.meta["val"]):
            if isinstance(number, torch.SymInt) and number.node.expr == symbol:
                with graph.inserting_after(tensor):
                    made = graph.call_function(op, (tensor, dim))
                made.meta["val"] = number
                return made
    raise LookupError(f"no tensor of the region has a dimension or stride {symbol}")


def _numbers(tensor: torch.Tensor) -> Iterator[tuple[Any, int, Any]]:
    """Yield the op, the dimension and the value of each number that describes a tensor."""
    yield from ((aten.sym_size.int, dim, size) for dim, size in enumerate(tensor.shape))
    yield from ((aten.sym_stride.int, dim, step) for dim, step in enumerate(tensor.stride()))


def hint_of(node: fx.Node) -> int:
    """Return the example value of a size node."""
    return int(node.meta["val"].node.hint)
