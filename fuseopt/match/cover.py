"""From what a match bound to nodes: what it covers, where it ends, what crosses it.

A match covers the nodes between its root and the values that its parameters stand for.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from fuseopt.ir import dims, expr
from fuseopt.ir.expr import Expr
from fuseopt.match.bindings import Bindings, Place, extent_of
from fuseopt.match.constants import Constant
from fuseopt.match.erase import core
from fuseopt.match.indices import Index, along
from fuseopt.match.pattern import Pattern
from fuseopt.match.rules import CrossedCast, Match, Rule, name_of
from fuseopt.match.subject import Root, Subject
from fuseopt.match.terms import Load, Term
from fuseopt.match.unify import Matcher


def match_of(
    subject: Subject,
    rule: type[Rule],
    pattern: Pattern,
    root: Root,
    bindings: Bindings,
    place: Place,
) -> Match:
    """Return a match in terms of nodes."""
    ends = _Ends(subject, root)
    captured: dict[str, tuple[Term, Expr | None]] = {}
    for name in (p.name for p in pattern.parameters if p.is_tensor):
        bound = bindings.captures[name]
        term = bound.at(root.shadow.table, place) or bound.term
        captured[name] = term, ends.add(term)
    if bindings.rest is not None:
        ends.add(bindings.rest)
    walk = _Walk(subject, root.node, ends.cores)
    nodes: dict[str, fx.Node | None] = {}
    for name, (term, value) in captured.items():
        reached = () if value is None else walk.candidates(value)
        nodes[name] = next((n for n in reached if _stands_for(subject, root, place, n, term)), None)
    nodes |= _outputs(subject, pattern, root, bindings, walk)
    covered = tuple(sorted(walk.covered, key=subject.order.__getitem__))
    return Match(
        rule=name_of(rule),
        root=walk.root,
        axis=_axis(root, place),
        scalars=_scalars(bindings),
        values=nodes,
        nodes=covered,
        casts=tuple(_casts(subject, walk.visited)),
        escapes=tuple(n for n in covered if n is not walk.root and _escapes(n, walk)),
        rest="" if bindings.rest is None else str(bindings.rest),
        pattern=pattern.function.__name__,
    )


def _stands_for(subject: Subject, root: Root, place: Place, node: fx.Node, term: Term) -> bool:
    """Whether a node's tensor, broadcast against the root, is a term.

    A vector is also what it is along the feature axis, wherever that is, or along another one.
    """
    value = subject.values[node]
    axes = [along(a) for a in root.shadow.axes_of(root.value)]
    places: list[Place] = []
    if len(value.shape) <= len(axes):
        places.append(tuple(axes[len(axes) - len(value.shape) :]))
    if len(value.shape) == 1:
        places += [place, *((axis,) for axis in axes)]
    return any(_is_at(root, value, indices, term) for indices in places)


def _is_at(root: Root, value: Expr, indices: Place, term: Term) -> bool:
    if len(indices) != len(value.shape):
        return False
    extents = zip(value.shape, indices, strict=True)
    if not all(s == 1 or dims.same(s, extent_of(i)) for s, i in extents):
        return False
    fitted = tuple(Index() if s == 1 else i for s, i in zip(value.shape, indices, strict=True))
    return root.shadow.at(value, fitted) is term


class _Ends:
    """The values at which a match ends."""

    def __init__(self, subject: Subject, root: Root) -> None:
        self.subject = subject
        self.root = root
        self.cores: set[Expr] = set()

    def add(self, term: Term) -> Expr | None:
        """End at a term, and return the value that it is, None where it is put together."""
        value = self._value_of(term)
        if value is not None:
            self.cores.add(value)
            return value
        for operand in term.operands:
            self.add(operand)
        return None

    def _value_of(self, term: Term) -> Expr | None:
        known = self.root.shadow.value_of(term)
        return self._source(term) if known is None and isinstance(term, Load) else known

    def _source(self, load: Load) -> Expr | None:
        source = load.source
        if source.kind == "let":
            found: Expr = source.key
            return found
        return self.root.shadow.inputs.get(source)


class _Walk:
    """Nodes from a root back to the values where its match ends.

    visited: the nodes between. reached: the nodes through which each end was met, conversions
    passed over. root: the last node that only converts what the root computes.
    """

    def __init__(self, subject: Subject, start: fx.Node, ends: set[Expr]) -> None:
        self.subject = subject
        self.ends = ends
        self.visited: set[fx.Node] = set()
        self.reached: dict[Expr, list[fx.Node]] = {}
        self.root = self._last(start)
        self._walk()
        self.covered = [n for n in self.visited if n in subject.order]

    def _last(self, start: fx.Node) -> fx.Node:
        same = [
            n
            for n in self.subject.nodes_of[core(self.subject.values[start])]
            if self.subject.values[n] is self.subject.values[start]
        ]
        return same[-1] if same else start

    def _walk(self) -> None:
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node in self.visited:
                continue
            value = self.subject.values.get(node)
            if node is not self.root and value is not None and core(value) in self.ends:
                self._reach(core(value), node)
                continue
            if node not in self.subject.lifted.exprs and node.target is not operator.getitem:
                continue
            if isinstance(value, expr.Input):
                continue
            self.visited.add(node)
            stack.extend(node.all_input_nodes)

    def _reach(self, value: Expr, node: fx.Node) -> None:
        while _only_converts(self.subject, node):
            node = node.all_input_nodes[0]
        self.reached.setdefault(value, []).append(node)

    def candidates(self, value: Expr) -> list[fx.Node]:
        """Return the nodes that show a value in some way, those that were met first."""
        others = self.subject.nodes_of.get(value, ())
        return [*self.reached.get(value, ()), *others]


def _only_converts(subject: Subject, node: fx.Node) -> bool:
    source = node.all_input_nodes[0] if len(node.all_input_nodes) == 1 else None
    value = subject.values.get(node)
    return (
        source is not None
        and value is not None
        and subject.values.get(source) is value
        and node not in subject.lifted.inputs
    )


def _outputs(
    subject: Subject, pattern: Pattern, root: Root, bindings: Bindings, walk: _Walk
) -> dict[str, fx.Node | None]:
    found: dict[str, fx.Node | None] = {}
    for name, term in pattern.outputs:
        found[name] = next(
            (
                node
                for node in sorted(walk.covered, key=subject.order.__getitem__)
                if node in subject.values
                and _computes(subject, root, pattern, bindings, node, term)
            ),
            None,
        )
    return found


def _computes(
    subject: Subject, root: Root, pattern: Pattern, bindings: Bindings, node: fx.Node, term: Term
) -> bool:
    """Whether a covered node is a further output of the pattern, with what is bound."""
    value = subject.values[node]
    if core(value) is not value or value.shape != root.value.shape:
        return False
    matcher = Matcher(pattern, root.shadow.table)
    site = root.shadow.written_out(value)
    return next(iter(matcher.forms(term, site, bindings, partly=False)), None) is not None


def _axis(root: Root, place: Place) -> int | None:
    axes = root.shadow.axes_of(root.value)
    axis = place[0].single_axis if len(place) == 1 else None
    return axes.index(axis) if axis in axes else None


def _scalars(bindings: Bindings) -> dict[str, Any]:
    found: dict[str, Any] = {n[1:]: _number(c) for n, c in bindings.scalars.items()}
    return found | {n[1:]: s for n, s in bindings.sizes.items()}


def _number(constant: Constant) -> Any:
    return float(f"{constant:.9g}") if isinstance(constant, float) else str(constant)


def _casts(subject: Subject, visited: Iterable[fx.Node]) -> Iterator[CrossedCast]:
    for node in sorted(visited, key=lambda n: n.name):
        made = subject.lifted.exprs.get(node)
        if isinstance(made, expr.Cast) and made.explicit:
            before = node.all_input_nodes[0].meta.get("val")
            if isinstance(before, torch.Tensor) and before.dtype != made.dtype:
                yield CrossedCast(node, before.dtype, made.dtype)


def _escapes(node: fx.Node, walk: _Walk) -> bool:
    return any(u not in walk.visited and u is not walk.root for u in node.users)
