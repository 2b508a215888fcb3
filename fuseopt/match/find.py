"""Finding matches: every rule's patterns at every value that a region's nodes compute.

    subject {pow, mean, add, rsqrt, mul, mul}   ->   Match("rms_norm", root=mul, covering all six)

A pattern is tried only at roots that contain what it needs. A match maps back to nodes: it covers
those between the root and the values that its parameters stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import fx

from fuseopt.match.bindings import Bindings, Place
from fuseopt.match.cover import match_of
from fuseopt.match.pattern import Pattern
from fuseopt.match.registry import Registry
from fuseopt.match.rules import Match, Rule
from fuseopt.match.subject import Root, Subject
from fuseopt.match.terms import Add, Apply, Literal, Load, Mul, Term
from fuseopt.match.unify import Matcher, Miss


@dataclass(frozen=True, slots=True)
class Found:
    """A match with the rule and the bindings it came from.

    plain: whether parameters stand for values, or sums and products of some.
    """

    match: Match
    rule: type[Rule]
    pattern: Pattern
    bindings: Bindings
    plain: bool


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The pattern that came furthest at a root without matching."""

    rule: type[Rule]
    pattern: Pattern
    root: Root
    miss: Miss


@dataclass(slots=True)
class Search:
    """Matches rules in one subject.

    nearest: the failed attempt that bound most, where asked for.
    """

    subject: Subject
    registry: Registry
    explain: bool = False
    nearest: NearMiss | None = None

    def best(self) -> Found | None:
        """Return the match to name a region by: exact before partial, larger before smaller."""
        return next(iter(self.all()), None)

    def all(self) -> list[Found]:
        """Return matches that do not overlap, the preferred ones; exact if there are any."""
        found = self._matches(partly=False) or self._matches(partly=True)
        taken: set[fx.Node] = set()
        kept: list[Found] = []
        for one in sorted(found, key=_preference):
            if taken.isdisjoint(one.match.nodes):
                taken.update(one.match.nodes)
                kept.append(one)
        return kept

    def _matches(self, *, partly: bool) -> list[Found]:
        """The best match of each root; exponentials are shared values where nothing fits else."""
        best: dict[fx.Node, Found] = {}
        shares = [False, True] if self.subject.has_shared_exponential() else [False]
        for share in shares:
            for root in self.subject.roots(share_exponentials=share):
                found = [] if root.node in best else list(self.at(root, partly=partly))
                if found:
                    best[root.node] = min(found, key=_preference)
        return list(best.values())

    def at(self, root: Root, *, partly: bool) -> Iterator[Found]:
        """Yield the matches of all rules at one root."""
        for rule in self.registry.rules:
            for pattern in self.registry.patterns(rule):
                bindings = self.bind(rule, pattern, root, partly=partly)
                if bindings is None:
                    continue
                made = match_of(self.subject, rule, pattern, root, *bindings)
                if rule().applies(made):
                    yield Found(made, rule, pattern, bindings[0], _is_plain(root, bindings[0]))

    def bind(
        self, rule: type[Rule], pattern: Pattern, root: Root, *, partly: bool
    ) -> tuple[Bindings, Place] | None:
        """Match one pattern at one root; None where it does not fit."""
        if pattern.is_trivial:
            return None
        if not self.explain and not pattern.traits <= root.traits:
            return None
        reduces = any(t.startswith("fold:") for t in pattern.traits)
        for place in root.places(reduces=reduces):
            matcher = Matcher(pattern, root.shadow.table, root.shadow.is_value)
            found = matcher.root(root.term, place, partly=partly)
            if found is not None:
                return found, place
            if self.explain:
                self._note(rule, pattern, root, matcher.miss)
        return None

    def _note(self, rule: type[Rule], pattern: Pattern, root: Root, miss: Miss | None) -> None:
        if miss is None or miss.bound == 0:
            return
        if self.nearest is None or miss.bound > self.nearest.miss.bound:
            self.nearest = NearMiss(rule, pattern, root, miss)


def _preference(found: Found) -> tuple[bool, bool, int]:
    return not found.match.is_exact, not found.plain, -len(found.match.nodes)


def _is_plain(root: Root, bindings: Bindings) -> bool:
    terms = [b.term for b in bindings.captures.values()]
    return not any(_is_composite(root, term) for term in terms)


def _is_composite(root: Root, term: Term) -> bool:
    """Whether a term that is no value of the site is more than a sum or product of values."""
    if root.shadow.is_value(term) or isinstance(term, (Load, Literal)):
        return False
    is_simple = isinstance(term, (Add, Mul)) or (isinstance(term, Apply) and term.name == "not")
    return not is_simple or any(_is_composite(root, o) for o in term.operands)
