"""What fusing saves: bytes of memory traffic and kernel launches."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from fuseopt.graph.lift import target_name, tensors_of
from fuseopt.ops import OPS


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


def read_bytes(node: fx.Node, users: Iterable[fx.Node]) -> int:
    """Return the bytes that users read of a tensor; of a table, no more than they take from it."""
    whole = node_bytes(node)
    taken = 0
    for user in users:
        declared = OPS.get(target_name(user))
        if declared is None or declared.form != "index" or user.args[0] is not node:
            return whole
        taken += node_bytes(user)
    return min(whole, taken) if taken else whole


def bytes_alone(nodes: Iterable[fx.Node]) -> int:
    """Return the bytes that these nodes move when each is a kernel of its own."""
    total = 0
    for node in nodes:
        total += node_bytes(node)
        total += sum(read_bytes(n, [node]) for n in node.all_input_nodes)
    return total


def bytes_fused(
    nodes: Iterable[fx.Node], inputs: Iterable[fx.Node], outputs: Iterable[fx.Node]
) -> int:
    """Return the bytes that a region of these nodes moves: each input once, each output once."""
    members = set(nodes)
    read = sum(read_bytes(n, [u for u in n.users if u in members]) for n in inputs)
    return read + sum(map(node_bytes, outputs))
