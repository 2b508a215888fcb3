"""Finding matches: every rule's patterns at every value that a region's nodes compute.

    subject {pow, mean, add, rsqrt, mul, mul}   ->   Match("rms_norm", root=mul, covering all six)

A pattern is tried only at roots that contain what it needs. A match maps back to nodes: it covers
those between the root and the values that its parameters stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import fx

from fuseopt.match.bindings import Bindings, Place
from fuseopt.match.cover import match_of
from fuseopt.match.pattern import Pattern
from fuseopt.match.registry import Registry
from fuseopt.match.rules import Match, Reject, Rule, ask
from fuseopt.match.subject import Root, Subject
from fuseopt.match.terms import Add, Apply, Literal, Load, Mul, Term
from fuseopt.match.unify import Matcher, Miss


@dataclass(frozen=True, slots=True)
class Found:
    """A match with the rule and the bindings it came from.

    plain: whether parameters stand for values, or sums and products of some.
    loose: how many operations there are less than nodes, since a parameter stands for several
        operands that no node puts together.
    """

    match: Match
    rule: type[Rule]
    pattern: Pattern
    bindings: Bindings
    plain: bool
    loose: int


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The pattern that came furthest at a root without matching.

    nodes: those that compute what did not fit, nearest first. score: how far it came, in values
    bound and in kinds of operations that both have.
    """

    rule: type[Rule]
    pattern: Pattern
    root: Root
    miss: Miss
    nodes: tuple[fx.Node, ...]
    score: int

    def text(self) -> str:
        """Return what the pattern has where the site has something else."""
        line = self.pattern.lines().get(self.miss.expected)
        if line is not None:
            return f"the rule has `{line}` there"
        return f"the rule has {self.miss.expected} where this has {self.miss.found}"


@dataclass(slots=True)
class Search:
    """Matches rules in one subject.

    nearest: the failed attempt that bound most, where `explain` is set.
    rejected: matches that their rules declined.
    """

    subject: Subject
    registry: Registry
    explain: bool = False
    nearest: NearMiss | None = None
    rejected: list[tuple[Found, Reject]] = field(default_factory=list)

    def all(self, *, partly: bool = True) -> list[Found]:
        """Return the matches to use: none overlap, each was preferred to those it overlaps.

        Exact before partial, larger before smaller. partly: where nothing matches exactly, also
        those that leave operands of the root's operation over.
        """
        found = self._matches(partly=False)
        if not found and partly:
            found = self._matches(partly=True)
        taken: set[fx.Node] = set()
        kept: list[Found] = []
        for one in sorted(found, key=_preference):
            if taken.isdisjoint(one.match.nodes) and self._is_accepted(one):
                taken.update(one.match.nodes)
                kept.append(one)
        return kept

    def _is_accepted(self, found: Found) -> bool:
        reject: Reject | None = ask(found.rule, "check", found.match)
        if reject is not None:
            self.rejected.append((found, reject))
        return reject is None

    def _matches(self, *, partly: bool) -> list[Found]:
        """The matches of all roots; exponentials are shared values where nothing fits else."""
        matched: dict[fx.Node, list[Found]] = {}
        shares = [False, True] if self.subject.has_shared_exponential() else [False]
        for share in shares:
            for root in self.subject.roots(share_exponentials=share):
                if not matched.get(root.node):
                    matched[root.node] = list(self.at(root, partly=partly))
        return [found for one in matched.values() for found in one]

    def at(self, root: Root, *, partly: bool) -> Iterator[Found]:
        """Yield the matches of all rules at one root."""
        for rule in self.registry.rules:
            for pattern in self.registry.patterns(rule):
                bindings = self.bind(rule, pattern, root, partly=partly)
                if bindings is None:
                    continue
                made = match_of(self.subject, rule, pattern, root, *bindings)
                if ask(rule, "applies", made):
                    terms = [b.term for b in bindings[0].captures.values()]
                    plain = not any(_is_composite(root, t) for t in terms)
                    loose = sum(_loose_operands(root, t) for t in terms)
                    yield Found(made, rule, pattern, bindings[0], plain, loose)

    def bind(
        self, rule: type[Rule], pattern: Pattern, root: Root, *, partly: bool
    ) -> tuple[Bindings, Place] | None:
        """Match one pattern at one root; None where it does not fit."""
        if pattern.is_trivial:
            return None
        if not pattern.traits <= root.traits and not (
            self.explain and pattern.traits & root.traits
        ):
            return None
        for place in root.places(pattern):
            matcher = Matcher(pattern, root.shadow.table, root.shadow.is_value)
            found = matcher.root(root.term, place, partly=partly)
            if found is not None:
                return found, place
            if self.explain:
                self._note(rule, pattern, root, matcher.miss)
        return None

    def near_miss(self) -> NearMiss | None:
        """Return the pattern that came furthest, of those that have anything of a root's kind."""
        self.explain = True
        for root in self.subject.roots():
            for _ in self.at(root, partly=False):
                pass
        self.explain = False
        return self.nearest

    def _note(self, rule: type[Rule], pattern: Pattern, root: Root, miss: Miss | None) -> None:
        if miss is None:
            return
        score = miss.bound + 2 * len(pattern.traits & root.traits)
        score -= len(pattern.traits - root.traits)
        if self.nearest is not None and score <= self.nearest.score:
            return
        value = root.shadow.value_of(miss.found)
        nodes = () if value is None else tuple(self.subject.nodes_of.get(value, ()))
        self.nearest = NearMiss(rule, pattern, root, miss, (*nodes, root.node), score)


def _preference(found: Found) -> tuple[bool, bool, int, int]:
    size = len(found.match.nodes) - found.loose
    return not found.match.is_exact, not found.plain, -size, found.loose


def _loose_operands(root: Root, term: Term) -> int:
    if root.shadow.is_value(term) or not isinstance(term, (Add, Mul)):
        return 0
    return len(term.operands) - 1 + sum(_loose_operands(root, o) for o in term.operands)


def _is_composite(root: Root, term: Term) -> bool:
    """Whether a term that is no value of the site is more than a sum or product of values."""
    if root.shadow.is_value(term) or isinstance(term, (Load, Literal)):
        return False
    is_simple = isinstance(term, (Add, Mul)) or (isinstance(term, Apply) and term.name == "not")
    return not is_simple or any(_is_composite(root, o) for o in term.operands)
