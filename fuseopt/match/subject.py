"""The nodes that patterns are matched against, with their values' terms."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from fuseopt.graph.lift import Lifted
from fuseopt.ir import expr
from fuseopt.ir.expr import Expr
from fuseopt.match.bindings import Place
from fuseopt.match.erase import Erasure, core
from fuseopt.match.features import axis_places, reduced_places
from fuseopt.match.pattern import Pattern
from fuseopt.match.shadow import Shadow
from fuseopt.match.terms import Term
from fuseopt.match.traits import traits_of

TRAIT_DEPTH = 3


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """A value that a pattern may match: its node, expression, term, and where features may run."""

    node: fx.Node
    value: Expr
    term: Term
    shadow: Shadow
    traits: frozenset[str]
    reduced: tuple[Place, ...]
    plain: tuple[Place, ...]

    def places(self, pattern: Pattern) -> tuple[Place, ...]:
        """Where the feature axis of a pattern may run."""
        if pattern.reduces and self.reduced:
            return self.reduced
        found = self.plain or ((),)
        return found if pattern.reduces or pattern.is_placed else found[:1]


class Subject:
    """Nodes of one region, or of a whole graph.

    nodes: in graph order; what is matched and covered. lifted: their expressions.
    """

    def __init__(self, nodes: Sequence[fx.Node], lifted: Lifted) -> None:
        self.nodes = tuple(nodes)
        self.lifted = lifted
        self.erasure = Erasure()
        self.values = self._values(lifted.exprs)
        self._shadows: dict[bool, Shadow] = {}
        self.order = {n: place for place, n in enumerate(nodes)}
        self.nodes_of: dict[Expr, list[fx.Node]] = {}
        for node, value in self.values.items():
            self.nodes_of.setdefault(core(value), []).append(node)

    def _values(self, exprs: Mapping[fx.Node, Any]) -> dict[fx.Node, Expr]:
        """The erased value of each node that is one tensor."""
        found: dict[fx.Node, Expr] = {}
        for node, value in exprs.items():
            if isinstance(value, Expr):
                found[node] = self.erasure.of(value)
            elif isinstance(value, tuple):
                for user in node.users:
                    taken = value[_place(user)] if user.target is operator.getitem else None
                    if isinstance(taken, Expr):
                        found[user] = self.erasure.of(taken)
        return found

    def shadow(self, *, share_exponentials: bool) -> Shadow:
        """Return the terms of the nodes. See `Shadow`."""
        known = self._shadows.get(share_exponentials)
        if known is None:
            known = Shadow(
                self.erasure, self.values.values(), share_exponentials=share_exponentials
            )
            self._shadows[share_exponentials] = known
        return known

    def roots(self, *, share_exponentials: bool = False) -> list[Root]:
        """Return the values that nodes compute, each once, last first; views of them are none."""
        shadow = self.shadow(share_exponentials=share_exponentials)
        found: dict[Expr, fx.Node] = {}
        for node in self._computing():
            value = core(self.values[node])
            if not isinstance(value, (expr.Input, expr.Const)):
                found.setdefault(value, node)
        return [self.root(shadow, node) for node in reversed(found.values())]

    def _computing(self) -> Iterable[fx.Node]:
        for node in self.values:
            source = node.args[0] if node.target is operator.getitem else node
            if source in self.order:
                yield node

    def root(self, shadow: Shadow, node: fx.Node) -> Root:
        """Return the value of one node as a root."""
        value = self.values[node]
        term = shadow.written_out(value)
        return Root(
            node,
            value,
            term,
            shadow,
            traits_of(shadow.table, term, TRAIT_DEPTH),
            tuple(reduced_places(shadow.table, term)),
            tuple(axis_places(shadow.axes_of(value))),
        )

    def has_shared_exponential(self) -> bool:
        """Whether terms differ when exponentials are shared like other values."""
        return self.shadow(share_exponentials=False).unshared > 0


def _place(taken: fx.Node) -> int:
    place = taken.args[1]
    assert isinstance(place, int)
    return place
