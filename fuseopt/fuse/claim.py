"""Claiming: before regions grow, the matches that a rule replaces itself, or keeps in one region.

    mm -> {pow, mean, add, rsqrt, mul} -> mm     rule with a kernel     ->     mm -> call -> mm

What only a replaced match needs runs no more and grows into no region. Of rules without a kernel,
only those that a user passes are claimed: their matches are what regions start from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from fuseopt.errors import RuleError
from fuseopt.events import NotFused, Reason
from fuseopt.fuse.classify import Role, Verdict
from fuseopt.graph.effects import next_effects
from fuseopt.graph.lift import lift
from fuseopt.graph.locate import node_info
from fuseopt.match.find import Found, Search
from fuseopt.match.registry import Registry
from fuseopt.match.rules import Match, Prewritten, Reject, ask, name_of
from fuseopt.match.subject import Subject


@dataclass(frozen=True, slots=True)
class Claim:
    """A match that something prewritten takes the place of.

    key: digest of rule, scalars and layouts; equal claims are checked once.
    inputs: the nodes of the tensors that it is called with, in order.
    outputs: the root, then further outputs of the pattern that are needed outside.
    picks: which of what the function returns these are.
    dead: the nodes that nothing else needs, in graph order.
    """

    key: str
    rule: str
    match: Match
    prewritten: Prewritten
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    picks: tuple[int, ...]
    dead: tuple[fx.Node, ...]


@dataclass(frozen=True, slots=True)
class Claims:
    """What was claimed in a graph. seeds: nodes to start regions from."""

    replaced: tuple[Claim, ...] = ()
    seeds: tuple[frozenset[fx.Node], ...] = ()
    declined: tuple[NotFused, ...] = ()


def claim(
    graph: fx.Graph,
    verdicts: Mapping[fx.Node, Verdict],
    registry: Registry,
    inline: Callable[[fx.Node], bool],
    number: int,
) -> Claims:
    """Claim matches in a graph.

    registry: the rules with kernels, and those of the user's without. inline: nodes that are looked
    through.
    """
    nodes = [n for n in graph.nodes if verdicts[n].role is Role.FUSABLE]
    if not registry.rules or not nodes:
        return Claims()
    search = Search(Subject(nodes, lift(nodes, inline)), registry)
    waits_for = {after: before for before, after in next_effects(graph).items()}
    replaced: list[Claim] = []
    seeds: list[frozenset[fx.Node]] = []
    declined: list[NotFused] = []
    for found in search.all(partly=False):
        made = _claimed(found, waits_for)
        if isinstance(made, Claim):
            replaced.append(made)
        elif made is None:
            seeds.append(frozenset(found.match.nodes))
        else:
            declined.append(_event(found, made, number))
    declined += [_event(f, r, number) for f, r in search.rejected]
    return Claims(tuple(replaced), tuple(seeds), tuple(declined))


def _event(found: Found, reject: Reject, number: int) -> NotFused:
    infos = tuple(map(node_info, found.match.nodes))
    culprit = node_info(reject.culprit or found.match.root)
    return NotFused(number, infos, reject.code, reject.reason, culprit, name_of(found.rule))


def _claimed(found: Found, waits_for: Mapping[fx.Node, fx.Node]) -> Claim | Reject | None:
    """What becomes of a match: a claim, a reason why not, or None for a generated kernel."""
    match = found.match
    prewritten: Prewritten | None = ask(found.rule, "kernel", match)
    if prewritten is None:
        return None
    inputs: list[fx.Node] = []
    for name in prewritten.inputs:
        if name in match.scalars:
            if not isinstance(match.scalars[name], (int, float)):
                return Reject(f"{name} depends on a size of a dynamic graph", match.root)
            continue
        if name not in match.values:
            known = ", ".join((*match.values, *match.scalars))
            raise RuleError(f"{found.rule.__name__}.kernel reads {name}; its pattern has {known}")
        node = match.values[name]
        if node is None:
            return Reject(f"{name} is not computed by one operation here", match.root)
        inputs.append(node)
    outputs, picks = _outputs(found)
    dead = _dead(match.root, inputs, outputs)
    if _depends(inputs, frozenset(dead), waits_for):
        return Reject("a value it reads depends on one it computes", match.root, Reason.CYCLE)
    key = _key(found, prewritten, inputs, outputs)
    return Claim(key, match.rule, match, prewritten, tuple(inputs), outputs, picks, tuple(dead))


def _outputs(found: Found) -> tuple[tuple[fx.Node, ...], tuple[int, ...]]:
    """The root, and further outputs of the pattern that something outside needs."""
    match = found.match
    outputs, picks = [match.root], [0]
    for place, (name, _) in enumerate(found.pattern.outputs, 1):
        node = match.values.get(name)
        if node is not None and node in match.escapes:
            outputs.append(node)
            picks.append(place)
    return tuple(outputs), tuple(picks)


def _dead(root: fx.Node, inputs: Iterable[fx.Node], outputs: Sequence[fx.Node]) -> list[fx.Node]:
    """Nodes above the root, down to the inputs, that only the match needs; outputs among them."""
    ends = set(inputs)
    above: list[fx.Node] = []
    stack, seen = [root], {root}
    while stack:
        node = stack.pop()
        above.append(node)
        for source in node.all_input_nodes:
            if source not in seen and source not in ends and source.op == "call_function":
                seen.add(source)
                stack.append(source)
    dead: set[fx.Node] = set()
    for node in sorted(above, key=_place, reverse=True):
        if node in outputs or all(u in dead for u in node.users):
            dead.add(node)
    return sorted(dead, key=_place)


def _place(node: fx.Node) -> tuple[int, ...]:
    return tuple(node._sort_key)


def _depends(
    inputs: Sequence[fx.Node], on: frozenset[fx.Node], waits_for: Mapping[fx.Node, fx.Node]
) -> bool:
    stack, seen = list(inputs), set(inputs)
    while stack:
        node = stack.pop()
        if node in on:
            return True
        before = [waits_for[node]] if node in waits_for else []
        for source in (*node.all_input_nodes, *before):
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return False


def _key(
    found: Found, prewritten: Prewritten, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> str:
    parts = [found.match.rule, found.match.pattern, sorted(found.match.scalars.items())]
    parts += [prewritten.inputs, [_layout(n) for n in inputs], [_layout(n) for n in outputs]]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _layout(node: fx.Node) -> str:
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return f"{value.dtype} {tuple(value.shape)} {value.stride()}"
