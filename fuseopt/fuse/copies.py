"""Computing again what two regions share, where that moves less memory than passing it on.

    {xhat = x * s; g = dy * w; dw = sum(g * xhat)}, {dx = s * (g - xhat * m)}     x, dy: bfloat16
    ->  each region reads x and dy, and neither xhat nor g, which are float32, is written

Regions that cannot be one kernel may need the same intermediate. Where it follows elementwise from
what its readers read anyway, or from smaller tensors, each gets a copy of the nodes that make it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from fuseopt.fuse.classify import Role, Verdict
from fuseopt.fuse.cost import bytes_fused, node_bytes, numel
from fuseopt.fuse.grow import Group, Growth
from fuseopt.graph.lift import COMPARED, target_name
from fuseopt.ops import OPS

MOST_COPIED = 16  # nodes for one value
SMALL = 64  # a value so many times smaller is worth writing: a statistic of a row
GAIN = 0.8  # of the bytes that passing a value takes, what computing it again may take


@dataclass(frozen=True, slots=True)
class Copied:
    """Copies that were made: each with its original, and the nodes that read it now."""

    copies: tuple[tuple[fx.Node, fx.Node, tuple[fx.Node, ...]], ...]

    def undo(self) -> None:
        """Let the readers read the originals again, and remove the copies."""
        for copy, original, readers in self.copies:
            for reader in readers:
                reader.replace_input_with(copy, original)
        for copy, _, _ in reversed(self.copies):
            if not copy.users:
                copy.graph.erase_node(copy)


def copy_cheap_values(
    graph: fx.Graph, growth: Growth, verdicts: dict[fx.Node, Verdict]
) -> Copied | None:
    """Give the readers of cheap values copies of the nodes that make them.

    The graph changes in place, and `verdicts` gains those of the copies. Returns None where no
    value is worth it.
    """
    group_of = {node: group for group in growth.groups for node in group.nodes}
    order = {node: place for place, node in enumerate(graph.nodes)}
    made: list[tuple[fx.Node, fx.Node, tuple[fx.Node, ...]]] = []
    for group in growth.groups:
        if group.region is None:
            continue
        for value in group.region.outputs:
            readers = _readers(value, group_of, verdicts)
            chain = _chain(value, group, order) if readers else None
            if readers is None or chain is None or not _pays(value, chain, readers):
                continue
            for nodes in readers.values():
                made += _copy(graph, chain, value, nodes, order, verdicts)
    if not made:
        return None
    graph.lint()
    return Copied(tuple(made))


def bytes_moved(growth: Growth) -> int:
    """Return the bytes that the kernels of all groups move."""
    regions = [g.region for g in growth.groups if g.region is not None]
    return sum(bytes_fused(r.nodes, r.inputs, r.outputs) for r in regions)


@dataclass(frozen=True, slots=True)
class _Chain:
    """The nodes that make a value, in order, and what they read."""

    nodes: tuple[fx.Node, ...]
    leaves: tuple[fx.Node, ...]


def _readers(
    value: fx.Node, group_of: Mapping[fx.Node, Group], verdicts: Mapping[fx.Node, Verdict]
) -> dict[int, list[fx.Node]] | None:
    """The nodes of other groups that read a value, by group; None where something else does."""
    if value.meta.get(COMPARED):
        return None
    own = group_of.get(value)
    found: dict[int, list[fx.Node]] = {}
    for user in value.users:
        group = group_of.get(user)
        if group is None or verdicts[user].role is not Role.FUSABLE:
            return None
        if group is not own:
            found.setdefault(id(group), []).append(user)
    return found or None


def _chain(value: fx.Node, group: Group, order: Mapping[fx.Node, int]) -> _Chain | None:
    """How a value is made of tensors outside its group, or of small ones; None if not cheaply."""
    nodes: set[fx.Node] = set()
    leaves: dict[fx.Node, None] = {}
    stack = [value]
    while stack:
        node = stack.pop()
        if node in nodes:
            continue
        is_leaf = node not in group.nodes or numel(node) * SMALL <= numel(value)
        if is_leaf and node is not value:
            leaves[node] = None
        elif is_leaf or not _is_elementwise(node):
            return None
        else:
            nodes.add(node)
            stack.extend(node.all_input_nodes)
    if len(nodes) > MOST_COPIED:
        return None
    return _Chain(tuple(sorted(nodes, key=order.__getitem__)), tuple(leaves))


def _is_elementwise(node: fx.Node) -> bool:
    declared = OPS.get(target_name(node))
    return declared is not None and declared.form == "pointwise"


def _pays(value: fx.Node, chain: _Chain, readers: Mapping[int, list[fx.Node]]) -> bool:
    """Whether reading what makes a value takes less than writing it once and reading it."""
    passed = node_bytes(value) * (1 + len(readers))
    again = len(readers) * sum(map(node_bytes, chain.leaves))
    return again <= GAIN * passed


def _copy(
    graph: fx.Graph,
    chain: _Chain,
    value: fx.Node,
    readers: list[fx.Node],
    order: Mapping[fx.Node, int],
    verdicts: dict[fx.Node, Verdict],
) -> list[tuple[fx.Node, fx.Node, tuple[fx.Node, ...]]]:
    made: dict[fx.Node, fx.Node] = {}
    with graph.inserting_before(min(readers, key=order.__getitem__)):
        for node in chain.nodes:
            made[node] = graph.node_copy(node, lambda n: made.get(n, n))
            made[node].meta = dict(node.meta)
            verdicts[made[node]] = verdicts[node]
    for reader in readers:
        reader.replace_input_with(value, made[value])
    return [(made[n], n, tuple(readers) if n is value else ()) for n in chain.nodes]
