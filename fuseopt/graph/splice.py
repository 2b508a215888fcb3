"""Splicing: the nodes of each region become one call, the rest of the graph stays.

    mm -> relu -> mul -> mm     with region {relu, mul}     ->     mm -> region_0 -> mm

Nodes of a region need not be neighbours, so the graph is put in order again: each call runs after
all it reads and before all that reads it, and what PyTorch runs keeps its own order wherever that
can be told apart (writes, random numbers).
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from fuseopt.graph.effects import has_effect, writes


@dataclass(frozen=True, slots=True)
class Call:
    """A callable that takes the place of some nodes.

    target: called with the values of `inputs`, returns one tensor, or a tuple of several.
    inputs: nodes it reads, tensors and sizes.
    nodes: what it replaces. outputs: the nodes whose values it gives, in order.
    launches: how many kernels it starts.
    """

    target: Callable[..., Any]
    name: str
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    launches: int = 1


def splice(gm: fx.GraphModule, calls: Sequence[Call]) -> fx.GraphModule:
    """Return a new graph module in which the calls stand in place of their nodes."""
    return _Splicing(gm, calls).run()


class _Splicing:
    def __init__(self, gm: fx.GraphModule, calls: Sequence[Call]) -> None:
        self.gm = gm
        self.order = {node: place for place, node in enumerate(gm.graph.nodes)}
        self.produced = {o: call for call in calls for o in call.outputs}
        self.calls = calls
        self.new = fx.Graph()
        self.made: dict[fx.Node, fx.Node] = {}

    def run(self) -> fx.GraphModule:
        live = self._live()
        units: list[fx.Node | Call] = [*live, *self.calls]
        for unit in self._sorted(units):
            if isinstance(unit, Call):
                self._place_call(unit)
            else:
                self.made[unit] = self._copy(unit)
        result = fx.GraphModule(self.gm, self.new)
        result.graph.lint()
        return result

    def _live(self) -> list[fx.Node]:
        """Nodes that still run: needed by an effect, the output or a call, and not produced."""
        needed: set[fx.Node] = set()
        stack = [n for n in self.order if n.op in ("placeholder", "output") or has_effect(n)]
        while stack:
            node = stack.pop()
            if node in needed or node in self.produced:
                continue
            needed.add(node)
            stack.extend(node.all_input_nodes)
        called = [n for c in self.calls for n in c.inputs]
        while called:
            node = called.pop()
            if node in needed or node in self.produced:
                continue
            needed.add(node)
            called.extend(node.all_input_nodes)
        return [n for n in self.order if n in needed]

    def _sorted(self, units: list[fx.Node | Call]) -> list[fx.Node | Call]:
        """Put the units in an order that respects data and effects, close to the original one."""
        unit_of: dict[fx.Node, fx.Node | Call] = {u: u for u in units if isinstance(u, fx.Node)}
        unit_of.update(self.produced)
        waiting: dict[int, int] = {}
        users: dict[int, list[fx.Node | Call]] = {id(u): [] for u in units}

        def depend(unit: fx.Node | Call, on: fx.Node | Call) -> None:
            if on is not unit and unit not in users[id(on)]:
                users[id(on)].append(unit)
                waiting[id(unit)] = waiting.get(id(unit), 0) + 1

        for unit in units:
            reads = unit.inputs if isinstance(unit, Call) else tuple(unit.all_input_nodes)
            for node in reads:
                depend(unit, unit_of[node])
        self._keep_effects_in_order(units, unit_of, depend)
        ready = [(self._rank(u), i) for i, u in enumerate(units) if not waiting.get(id(u))]
        place = {id(u): i for i, u in enumerate(units)}
        heapq.heapify(ready)
        ordered: list[fx.Node | Call] = []
        while ready:
            _, number = heapq.heappop(ready)
            ordered.append(units[number])
            for user in users[id(units[number])]:
                waiting[id(user)] -= 1
                if not waiting[id(user)]:
                    heapq.heappush(ready, (self._rank(user), place[id(user)]))
        if len(ordered) != len(units):
            raise AssertionError("regions of this graph depend on each other in a circle")
        return ordered

    def _rank(self, unit: fx.Node | Call) -> tuple[int, int]:
        if isinstance(unit, Call):
            return (1, max(self.order[n] for n in unit.nodes))
        return ({"placeholder": 0, "output": 2}.get(unit.op, 1), self.order[unit])

    def _keep_effects_in_order(
        self,
        units: list[fx.Node | Call],
        unit_of: dict[fx.Node, fx.Node | Call],
        depend: Callable[[fx.Node | Call, fx.Node | Call], None],
    ) -> None:
        previous: fx.Node | None = None
        for node in (u for u in units if isinstance(u, fx.Node) and has_effect(u)):
            if previous is not None:
                depend(node, previous)
            previous = node
        # A write to an input comes after everything that reads what it had before.
        for write in (u for u in units if isinstance(u, fx.Node) and writes(u)):
            for unit in units:
                if unit is not write and not _is_after(unit, write, self.order):
                    depend(write, unit)

    def _copy(self, node: fx.Node) -> fx.Node:
        copy = self.new.node_copy(node, lambda n: self.made[n])
        copy.meta = dict(node.meta)
        return copy

    def _place_call(self, call: Call) -> None:
        made = self.new.create_node(
            "call_function", call.target, tuple(self.made[n] for n in call.inputs), {}, call.name
        )
        values = [o.meta["val"] for o in call.outputs]
        made.meta["stack_trace"] = call.nodes[-1].meta.get("stack_trace")
        if len(call.outputs) == 1:
            made.meta["val"] = values[0]
            self.made[call.outputs[0]] = made
            return
        made.meta["val"] = tuple(values)
        for number, output in enumerate(call.outputs):
            taken = self.new.call_function(operator.getitem, (made, number))
            taken.meta = dict(output.meta)
            self.made[output] = taken


def _is_after(unit: fx.Node | Call, write: fx.Node, order: dict[fx.Node, int]) -> bool:
    if isinstance(unit, Call):
        return any(order[n] > order[write] for n in unit.nodes)
    return unit.op == "output" or order[unit] > order[write]
