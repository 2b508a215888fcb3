"""What a term contains, coarsely: a pattern is only tried where the site has all it needs."""

from __future__ import annotations

from fuseopt.match.terms import Apply, Exp, Fold, Load, Log, Mul, Pieces, Table, Term, walk

DEPTH = 4  # how many shared values are looked through


def traits_of(table: Table, term: Term, depth: int = DEPTH) -> frozenset[str]:
    """Return the traits of a term and of the shared values below it, down to a depth."""
    found: set[str] = set()
    for below in reachable(table, term, depth):
        found |= _own_traits(below)
    return frozenset(found)


def reachable(table: Table, term: Term, depth: int = DEPTH) -> list[Term]:
    """Return the terms below one, definitions of shared values included down to a depth."""
    found: dict[Term, None] = {}
    level = [term]
    for _ in range(depth + 1):
        following: list[Term] = []
        for start in level:
            for below in walk(start):
                if below in found:
                    continue
                found[below] = None
                if isinstance(below, Load) and below.source in table.definitions:
                    following.append(table.definitions[below.source])
        level = following
    return list(found)


def captures_of(table: Table, term: Term) -> frozenset[str]:
    """Return the names of a pattern's parameters that a term depends on."""
    loads = (t for t in reachable(table, term, depth=1000) if isinstance(t, Load))
    return frozenset(t.source.name for t in loads if t.source.kind == "capture")


def _own_traits(term: Term) -> set[str]:
    match term:
        case Exp():
            return {"exp"}
        case Log():
            return {"log"}
        case Pieces():
            return {"pieces"}
        case Fold(combine=combine):
            return {f"fold:{combine}"}
        case Apply(name=name):
            return {f"apply:{name}"}
        case Mul(factors=factors):
            return {f"power:{p:g}" for _, p in factors if p in (-0.5, 2.0)}
        case _:
            return set()
