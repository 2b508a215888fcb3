"""What fusing saves: bytes of memory traffic and kernel launches."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from fuseopt.graph.lift import tensors_of


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes a tensor's distinct elements occupy; expanded dimensions count once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if not (isinstance(stride, int) and stride == 0):
            count *= hint_of(size)
    return count * tensor.dtype.itemsize


def hint_of(size: int | torch.SymInt) -> int:
    """Return a size, or the example value of a symbolic one."""
    if isinstance(size, int):
        return size
    return int(size.node.hint)


def node_bytes(node: fx.Node) -> int:
    """Return the bytes of a node's results."""
    return sum(map(tensor_bytes, tensors_of(node)))


def numel(node: fx.Node) -> int:
    """Return the number of elements of a node's largest result."""
    return max((_numel(t) for t in tensors_of(node)), default=0)


def _numel(tensor: torch.Tensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= hint_of(size)
    return count


def bytes_alone(nodes: Iterable[fx.Node]) -> int:
    """Return the bytes that these nodes move when each is a kernel of its own."""
    total = 0
    for node in nodes:
        total += node_bytes(node)
        total += sum(map(node_bytes, node.all_input_nodes))
    return total


def bytes_fused(inputs: Iterable[fx.Node], outputs: Iterable[fx.Node]) -> int:
    """Return the bytes that a region moves: each input once, each output once."""
    return sum(map(node_bytes, inputs)) + sum(map(node_bytes, outputs))
