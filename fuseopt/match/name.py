"""Naming regions by the rules that match them, and saying which rule came nearest to one.

    region {pow, mean, add, rsqrt, mul}   ->   Naming("rms_norm")

Regions of equal structure are matched once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import fx

from fuseopt.errors import RuleError
from fuseopt.events import Reason
from fuseopt.graph.lift import lift, target_name
from fuseopt.match.find import Search
from fuseopt.match.registry import Registry
from fuseopt.match.rules import name_of
from fuseopt.match.subject import Subject
from fuseopt.ops import NotExpressible

POINTWISE = "pointwise"
LEAST_SCORE = 4  # a rule that came less far has nothing to do with a place


@dataclass(frozen=True, slots=True)
class Declined:
    """A rule that matched and declined. culprit: the place in the region's nodes, if one."""

    rule: str
    reason: str
    code: Reason
    culprit: int | None


@dataclass(frozen=True, slots=True)
class Naming:
    """What a region is called, "" where no rule names it, and which rules declined it."""

    rule: str = ""
    declined: tuple[Declined, ...] = ()


@dataclass(frozen=True, slots=True)
class Nearest:
    """The rule that came nearest to a region that none matches.

    culprit: the place in the nodes of the first that did not fit. text: what the rule has there.
    """

    rule: str
    culprit: int | None
    text: str


@dataclass(slots=True)
class Names:
    """Names of regions, by their structural keys.

    inline: which nodes outside a region are looked through; the same as when it was lowered.
    read, write: names kept from other processes.
    """

    registry: Registry
    inline: Callable[[fx.Node], bool]
    read: Callable[[str], Naming | None] = lambda _: None
    write: Callable[[str, Naming], None] = lambda _, __: None
    _named: dict[str, Naming] = field(default_factory=dict)
    _nearest: dict[object, Nearest | None] = field(default_factory=dict)

    def of(self, key: str, nodes: Sequence[fx.Node], *, reduces: bool) -> Naming:
        """Return what a region is called. reduces: whether its kernel has a reduction."""
        known = self._named.get(key)
        if known is None:
            known = self.read(key)
            if known is None:
                known = self._name(nodes, reduces=reduces)
                self.write(key, known)
            self._named[key] = known
        return known

    def _name(self, nodes: Sequence[fx.Node], *, reduces: bool) -> Naming:
        search = self._search(nodes)
        if search is None:
            return Naming()
        try:
            found = search.all()
        except RuleError:
            raise
        except (AssertionError, RecursionError):
            return Naming()  # a mistake of ours here must not cost the kernel
        places = {n: place for place, n in enumerate(nodes)}
        declined = tuple(
            Declined(name_of(f.rule), r.reason, r.code, places.get(r.culprit or f.match.root))
            for f, r in search.rejected
        )
        if found:
            return Naming(found[0].match.rule, declined)
        has_rest = any(name_of(r) == POINTWISE for r in self.registry.rules)
        return Naming(POINTWISE if has_rest and not reduces else "", declined)

    def nearest(self, nodes: Sequence[fx.Node], of: fx.Node) -> Nearest | None:
        """Return the rule that nodes come nearest to, or match in vain; None where none is near.

        of: the node that the question is about.
        """
        key = (tuple(target_name(n) for n in nodes), nodes.index(of))
        if key not in self._nearest:
            search = self._search(nodes)
            self._nearest[key] = None if search is None else _nearest(search, nodes, of)
        return self._nearest[key]

    def _search(self, nodes: Sequence[fx.Node]) -> Search | None:
        try:
            lifted = lift(nodes, self.inline)
        except NotExpressible:
            return None
        return Search(Subject(nodes, lifted), self.registry)


def _nearest(search: Search, nodes: Sequence[fx.Node], of: fx.Node) -> Nearest | None:
    places = {n: place for place, n in enumerate(nodes)}
    for found in search.all(partly=False):
        if of in found.match.nodes:
            return Nearest(found.match.rule, None, "its operations are not in one region")
    miss = search.near_miss()
    if miss is None or miss.score < LEAST_SCORE:
        return None
    culprit = next((places[n] for n in miss.nodes if n in places), None)
    return Nearest(name_of(miss.rule), culprit, miss.text())
