"""Growing regions: fusable nodes that share an edge become one kernel where they fit one loop nest.

    mm -> add -> mean -> rsqrt -> mul -> mm      ->      mm -> {add, mean, rsqrt, mul} -> mm

Every fusable node starts as a group of its own. Groups that pass a tensor to each other merge, the
largest tensor first; then groups that read the same tensor. A merge must leave the graph without a
cycle, must lower to one kernel, and must not repeat work that a reduction or many users share.
Views and constants belong to no group: each region that needs one computes its index itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import fx

from fuseopt.events import Reason
from fuseopt.fuse.classify import Role, Verdict, is_widening
from fuseopt.fuse.cost import node_bytes, numel
from fuseopt.graph.effects import next_effects
from fuseopt.ir import dims
from fuseopt.lower.nest import NotLowerable
from fuseopt.lower.region import Region, values_of
from fuseopt.ops import NotExpressible

MOST_NODES = 160
MOST_TENSORS = 56
MOST_ROWS_REPEATED = 8  # times that a kernel may reduce a row, once for each copy it writes
FEW_READERS = 6  # of one tensor, of which every two are tried as one kernel
MOST_REPEATED = 16  # nodes that a region may compute again for each element they broadcast to


@dataclass(slots=True, eq=False)
class Group:
    """Nodes on their way to becoming a region."""

    nodes: set[fx.Node]
    region: Region | None = None


@dataclass(slots=True)
class Growth:
    """The groups of a graph, and why neighbours stayed apart."""

    groups: list[Group] = field(default_factory=list)
    apart: dict[fx.Node, tuple[fx.Node, Reason, str]] = field(default_factory=dict)

    def around(self, node: fx.Node) -> set[fx.Node]:
        """Return the nodes of a node's group, and of the group that it stayed apart from."""
        neighbour = self.apart[node][0] if node in self.apart else node
        return set().union(*(g.nodes for g in self.groups if {node, neighbour} & g.nodes))


LowerRegion = Callable[[Sequence[fx.Node], Sequence[fx.Node]], Region]


def grow(
    graph: fx.Graph,
    verdicts: dict[fx.Node, Verdict],
    lower_region: LowerRegion,
    seeds: Iterable[frozenset[fx.Node]] = (),
) -> Growth:
    """Return the groups that the fusable nodes of a graph form, each with its lowered region.

    lower_region: lowers nodes given in graph order with the values they must write.
    seeds: nodes to begin with as one group, where they fit one kernel.
    """
    return _Growing(graph, verdicts, lower_region).run(seeds)


class _Growing:
    def __init__(
        self, graph: fx.Graph, verdicts: dict[fx.Node, Verdict], lower_region: LowerRegion
    ) -> None:
        self.verdicts = verdicts
        self.lower_region = lower_region
        self.order = {node: place for place, node in enumerate(graph.nodes)}
        self.next_effects = next_effects(graph)
        self.sources = {n: self._sources(n) for n in graph.nodes if self._fusable(n)}
        self.group_of: dict[fx.Node, Group] = {}
        self.reach = _Reach(len(self.order))
        self.growth = Growth()
        self.refused: dict[tuple[frozenset[fx.Node], frozenset[fx.Node]], bool] = {}

    def run(self, seeds: Iterable[frozenset[fx.Node]]) -> Growth:
        for node in self.sources:
            self._start(node)
        for seed in seeds:
            self._plant(seed)
        while self._merge_once(self._connected()):
            pass
        while self._merge_once(self._siblings()):
            pass
        self.growth.groups = sorted(
            {id(g): g for g in self.group_of.values()}.values(),
            key=lambda g: min(self.order[n] for n in g.nodes),
        )
        return self.growth

    # --- groups --------------------------------------------------------------------------------

    def _fusable(self, node: fx.Node) -> bool:
        return self.verdicts[node].role is Role.FUSABLE

    def _free(self, node: fx.Node) -> bool:
        return self.verdicts[node].role is Role.FREE

    def _start(self, node: fx.Node) -> None:
        group = Group({node})
        try:
            if self.outputs({node}):
                group.region = self._lowered({node})
        except (NotExpressible, NotLowerable) as reason:
            code = Reason(getattr(reason, "code", Reason.NO_DEFINITION))
            self.verdicts[node] = Verdict(Role.OPAQUE, code, str(reason))
            return
        self.group_of[node] = group

    def _plant(self, seed: frozenset[fx.Node]) -> None:
        """Make one group of some nodes if they are whole groups and fit one kernel."""
        groups = [self.group_of.get(n) for n in seed]
        if any(g is None or not g.nodes <= seed for g in groups):
            return
        nodes = set(seed)
        if not self.outputs(nodes) or self._leads(nodes, nodes):
            return
        try:
            region = self._lowered(nodes)
            self._check_work(region)
        except (NotExpressible, NotLowerable):
            return
        self._join(nodes, region)

    def _join(self, nodes: set[fx.Node], region: Region) -> None:
        self.group_of.update(dict.fromkeys(nodes, Group(nodes, region)))
        self.reach.add(self.order[n] for n in nodes)

    def _sources(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """The nodes whose memory a node reads once views and constants are looked through."""
        found: dict[fx.Node, None] = {}
        stack = list(node.all_input_nodes)
        seen: set[fx.Node] = set()
        while stack:
            source = stack.pop()
            if source in seen:
                continue
            seen.add(source)
            if self._free(source) or is_widening(source):
                stack.extend(source.all_input_nodes)
            else:
                found[source] = None
        return tuple(sorted(found, key=self.order.__getitem__))

    def _in_order(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        return sorted(nodes, key=self.order.__getitem__)

    def outputs(self, nodes: set[fx.Node]) -> list[fx.Node]:
        """The values of some nodes that something outside them needs."""
        return [
            value
            for node in self._in_order(nodes)
            for value in values_of(node)
            if self._used_outside(value, nodes)
        ]

    def _used_outside(self, value: fx.Node, nodes: set[fx.Node]) -> bool:
        """Whether something other than `nodes` reads a value from memory.

        Regions look through views and widening conversions, whoever these belong to: they read
        what those read.
        """
        widening = is_widening(value)
        stack = [(user, False) for user in value.users]
        seen: set[tuple[fx.Node, bool]] = set()
        while stack:
            user, past_widening = stack.pop()
            if (user, past_widening) in seen:
                continue
            seen.add((user, past_widening))
            if self._free(user):
                stack.extend((u, past_widening) for u in user.users)
            elif user in nodes:
                if is_widening(user) and not past_widening:
                    stack.extend((u, True) for u in user.users)
            elif past_widening:
                if self._fusable(user):
                    return True
            elif not (widening and self._fusable(user)):
                return True
        return False

    # --- merging -------------------------------------------------------------------------------

    def _merge_once(self, pairs: Iterator[tuple[Group, Group]]) -> bool:
        """Try every pair once, and say whether any merged."""
        merged = False
        for first, second in pairs:
            alive = all(self.group_of[next(iter(g.nodes))] is g for g in (first, second))
            if alive and first is not second and self._merge(first, second):
                merged = True
        return merged

    def _connected(self) -> Iterator[tuple[Group, Group]]:
        """Groups with a tensor between them, the largest tensor first."""
        edges: dict[tuple[int, int], tuple[int, int, Group, Group]] = {}
        for node, group in self.group_of.items():
            for source in self.sources[node]:
                other = self.group_of.get(source)
                if other is not None and other is not group:
                    size = node_bytes(source)
                    key = (id(other), id(group))
                    known = edges.get(key, (0, -self.order[node], other, group))
                    edges[key] = (known[0] + size, known[1], other, group)
        for _, _, first, second in sorted(edges.values(), key=lambda e: (-e[0], -e[1])):
            yield first, second

    def _siblings(self) -> Iterator[tuple[Group, Group]]:
        """Groups of one size that read a tensor as large as that size, in graph order."""
        readers: dict[fx.Node, dict[int, Group]] = {}
        for node in self._in_order(self.group_of):
            for source in self.sources[node]:
                group = self.group_of[node]
                if source not in group.nodes and numel(source) * 2 >= self._points(group):
                    readers.setdefault(source, {})[id(group)] = group
        for groups in readers.values():
            found = list(groups.values())
            every_two = len(found) <= FEW_READERS
            near: Iterable[tuple[Group, Group]] = (
                itertools.combinations(found, 2) if every_two else itertools.pairwise(found)
            )
            for first, second in near:
                if self._points(first) == self._points(second):
                    yield first, second

    def _points(self, group: Group) -> int:
        return max(max((numel(s) for s in self.sources[n]), default=0) for n in group.nodes)

    def _merge(self, first: Group, second: Group) -> bool:
        pair = (frozenset(first.nodes), frozenset(second.nodes))
        if pair in self.refused:
            return False
        obstacle = self._obstacle(first, second)
        if obstacle is None:
            nodes = first.nodes | second.nodes
            if not self.outputs(nodes):
                return False
            try:
                region = self._lowered(nodes)
                self._check_work(region)
            except (NotExpressible, NotLowerable) as reason:
                obstacle = (Reason(getattr(reason, "code", Reason.INDEX)), str(reason))
            else:
                self._join(nodes, region)
                return True
        self.refused[pair] = True
        self._note(first, second, *obstacle)
        return False

    def _note(self, first: Group, second: Group, code: Reason, reason: str) -> None:
        a, b = self._in_order(first.nodes)[-1], self._in_order(second.nodes)[0]
        self.growth.apart[a] = (b, code, reason)
        self.growth.apart[b] = (a, code, reason)

    def _lowered(self, nodes: set[fx.Node]) -> Region:
        return self.lower_region(self._in_order(nodes), self.outputs(nodes))

    def _obstacle(self, first: Group, second: Group) -> tuple[Reason, str] | None:
        nodes = first.nodes | second.nodes
        if len(nodes) > MOST_NODES:
            return Reason.TOO_LARGE, f"more than {MOST_NODES} operations in one kernel"
        tensors = {s for n in nodes for s in self.sources[n] if s not in nodes}
        if len(tensors) + len(self.outputs(nodes)) > MOST_TENSORS:
            return Reason.TOO_LARGE, f"more than {MOST_TENSORS} tensors in one kernel"
        if self._leads(first.nodes, second.nodes) or self._leads(second.nodes, first.nodes):
            return Reason.CYCLE, "a value between them depends on the first and feeds the second"
        return self._repeated_work(first, second)

    def _repeated_work(self, first: Group, second: Group) -> tuple[Reason, str] | None:
        """Refuse a producer that is broadcast when that repeats much, or others need it too."""
        small, large = self._size(first), self._size(second)
        if small >= large or self._has_reduction(first):
            return None
        if any(
            self._used_outside(v, first.nodes | second.nodes)
            for n in first.nodes
            for v in values_of(n)
        ):
            return Reason.NO_GAIN, "a broadcast value that others use is computed once, by itself"
        if len(first.nodes) > MOST_REPEATED:
            return Reason.NO_GAIN, "it would be computed again for each element it broadcasts to"
        return None

    def _size(self, group: Group) -> int:
        return max(map(numel, group.nodes))

    def _has_reduction(self, group: Group) -> bool:
        return bool(group.region and group.region.kernel.columns)

    def _check_work(self, region: Region) -> None:
        """Raise `NotLowerable` where a kernel would reduce the same row too often.

        A few times do not matter where each time the row is written anew, as when heads repeat.
        """
        kernel = region.kernel
        written = max((s.axes for s in kernel.stores), key=len, default=frozenset())
        for fold in kernel.folds():
            idle = [a for a in kernel.rows if a not in fold.arg.axes]
            few = dims.is_nonnegative(MOST_ROWS_REPEATED + -dims.product(a.extent for a in idle))
            if idle and not (few and written.issuperset(kernel.axes)):
                raise NotLowerable(
                    Reason.AXES, "a reduction would be computed again for each place it is used"
                )

    def _leads(self, start: set[fx.Node], end: set[fx.Node]) -> bool:
        """Whether a path leads from some nodes through others to some nodes; groups are whole.

        A path through views alone is none: the region computes their indices itself. Nor is one
        from a widening conversion to a fusable node, which reads what the conversion reads.
        """
        last = self.reach.beyond(max(self.order[n] for n in end))
        stack = [(user, True) for user in self._dependents(start) if user not in start]
        seen: set[tuple[fx.Node, bool]] = set()
        while stack:
            node, views_only = stack.pop()
            if (node, views_only) in seen or self.order[node] > last:
                continue
            seen.add((node, views_only))
            if node in end and not views_only:
                return True
            if node in start or node in end:
                continue
            views_only = views_only and self._free(node)
            group = self.group_of.get(node)
            nodes = [node] if group is None else group.nodes
            stack.extend((user, views_only) for user in self._dependents(nodes))
            if is_widening(node):  # reached from what it reads, which its readers read too
                stack.extend((user, views_only) for user in node.users)
        return False

    def _dependents(self, nodes: Collection[fx.Node]) -> Iterator[fx.Node]:
        """What waits for nodes: their users, and after one with an effect the next such node."""
        for node in nodes:
            if node in self.next_effects:
                yield self.next_effects[node]
            widening = is_widening(node) and not any(s in nodes for s in self.sources.get(node, ()))
            yield from (u for u in node.users if not (widening and self._fusable(u)))


class _Reach:
    """How far down the graph a path may go and still come back up, through a group."""

    def __init__(self, count: int) -> None:
        self.far = list(range(count))

    def add(self, places: Iterable[int]) -> None:
        """Take note of a group with nodes at these places."""
        found = set(places)
        last = max(found)
        for place in range(min(found), last):
            if self.far[place] >= last:
                break
            self.far[place] = last

    def beyond(self, place: int) -> int:
        """Return the last place from which a path may lead back to one at or before `place`."""
        while self.far[place] > place:
            place = self.far[place]
        return place
