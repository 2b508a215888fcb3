"""Planning a graph: constants folded, regions grown and chosen. Nothing is compiled here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuseopt.config import Config
from fuseopt.events import Log, NotFused
from fuseopt.fuse.claim import Claim, claim
from fuseopt.fuse.classify import Role, Verdict, classify, is_widening
from fuseopt.fuse.copies import bytes_moved, copy_cheap_values
from fuseopt.fuse.grow import Group, Growth, grow
from fuseopt.fuse.select import Chosen, explain_rest, select
from fuseopt.graph.decompose import split_losses
from fuseopt.graph.extract import extract
from fuseopt.graph.fold import fold_constants
from fuseopt.graph.form import NormalisedGraph
from fuseopt.graph.gqa import share_heads
from fuseopt.graph.lift import target_name
from fuseopt.graph.locate import node_info
from fuseopt.graph.masks import simplify_masks
from fuseopt.graph.share import share_equal_values
from fuseopt.graph.symbols import hint_of, size_nodes
from fuseopt.lower.region import Lowerings, Region
from fuseopt.match.name import POINTWISE, Names, Naming
from fuseopt.match.registry import Registry, claiming_rules, registry_with
from fuseopt.match.remembered import Entries, Remembered
from fuseopt.match.rules import name_of


@dataclass(frozen=True, slots=True)
class Site:
    """A chosen region of one graph, ready to be built.

    sizes: the nodes that hold the values of the region's size symbols. reference: the region's own
    operations as a graph of its inputs, then its sizes.
    """

    chosen: Chosen
    name: str
    rule: str
    sizes: tuple[fx.Node, ...]
    reference: fx.GraphModule

    @property
    def region(self) -> Region:
        """The nodes and the loop kernel."""
        return self.chosen.region

    @property
    def hints(self) -> dict[Any, int]:
        """Example values of the kernel's size symbols."""
        symbols = [kernel_symbol for _, kernel_symbol in self.region.symbols]
        return dict(zip(symbols, map(hint_of, self.sizes), strict=True))


@dataclass(frozen=True, slots=True)
class Replaced:
    """A match in whose place a rule has something of its own run.

    sizes: the size nodes that its operations read. reference: these, as a graph of the claim's
    inputs, then the sizes.
    """

    claim: Claim
    sizes: tuple[fx.Node, ...]
    reference: fx.GraphModule


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with a graph: its sites, what rules replace, and why the rest stays."""

    sites: tuple[Site, ...]
    replaced: tuple[Replaced, ...]
    rest: tuple[NotFused, ...]


def plan_graph(
    graph: NormalisedGraph,
    device: torch.device,
    config: Config,
    log: Log,
    accept: Callable[[Replaced], bool] = lambda _: True,
    entries: Entries | None = None,
) -> Plan:
    """Fold a graph's constants in place and return the regions that should become kernels.

    device: where the graph's kernels run. accept: whether what a rule has in place of a match may
    be used; where not, regions grow there as elsewhere. entries: where names are kept for other
    processes.
    """
    gm, number = graph.gm, graph.number
    share_equal_values(gm)
    split_losses(gm)
    with log.timed("fold", number):
        verdicts = classify(gm.graph, device)
        fold_constants(
            gm,
            lambda n: verdicts[n].role is Role.FREE,
            lambda n: verdicts[n].role is Role.FUSABLE,
        )
        simplify_masks(gm)
        share_heads(gm)
    registry = registry_with(config.rules)
    with log.timed("grow", number):
        verdicts = classify(gm.graph, device)
        lowerings = Lowerings(
            lambda n: verdicts[n].role is Role.FREE or is_widening(n),
            round_like_eager=config.numerics == "eager",
        )
        claiming = claiming_rules(registry)
        claims = claim(gm.graph, verdicts, claiming, lowerings.inline, number)
        replaced = tuple(filter(accept, map(_replaced, claims.replaced)))
        for one in replaced:
            verdicts.update(dict.fromkeys(one.claim.dead, Verdict(Role.OPAQUE)))
        growth = _grown(gm, verdicts, lowerings, claims.seeds)
        chosen, left = select(growth)
    with log.timed("match", number):
        names = Names(registry, lowerings.inline)
        if entries is not None:
            kept = Remembered(entries, registry)
            names = Names(registry, lowerings.inline, kept.read, kept.write)
        sites = tuple(_site(gm.graph, c, names) for c in chosen)
        rest = [*claims.declined, *_declined(number, chosen, names, claiming)]
        rest += explain_rest(number, verdicts, left, lambda g: _nearest(g, growth, names))
    return Plan(sites, replaced, tuple(rest))


def _grown(
    gm: fx.GraphModule,
    verdicts: dict[fx.Node, Verdict],
    lowerings: Lowerings,
    seeds: Iterable[frozenset[fx.Node]],
) -> Growth:
    """Grow regions, and once more with copies of cheap values where that moves less memory."""
    seeds = tuple(seeds)
    growth = grow(gm.graph, verdicts, lowerings.lower_region, seeds)
    copied = copy_cheap_values(gm.graph, growth, verdicts)
    if copied is None:
        return growth
    again = grow(gm.graph, verdicts, lowerings.lower_region, seeds)
    if bytes_moved(again) < bytes_moved(growth):
        gm.recompile()
        return again
    copied.undo()
    return growth


def _replaced(claim: Claim) -> Replaced:
    sizes: dict[fx.Node, None] = {}
    for node in claim.dead:
        for source in node.all_input_nodes:
            if isinstance(source.meta.get("val"), torch.SymInt) and source not in claim.dead:
                sizes[source] = None
    reference = extract(claim.dead, claim.inputs, claim.outputs, tuple(sizes))
    return Replaced(claim, tuple(sizes), reference)


def _site(graph: fx.Graph, chosen: Chosen, names: Names) -> Site:
    region = chosen.region
    sizes = size_nodes(graph, [s for s, _ in region.symbols], region.inputs)
    reference = extract((*region.nodes, *region.through), region.inputs, region.outputs, sizes)
    rule = _naming(region, names).rule
    return Site(chosen, kernel_name(chosen.kernels, region.key, rule), rule, sizes, reference)


def _naming(region: Region, names: Names) -> Naming:
    return names.of(region.key, region.nodes, reduces=bool(region.kernel.columns))


def _declined(
    number: int, chosen: Sequence[Chosen], names: Names, claiming: Registry
) -> Iterator[NotFused]:
    """An event for each region that a rule matched and declined; it is fused without its name.

    claiming: the rules that were asked before regions grew.
    """
    asked = set(map(name_of, claiming.rules))
    for one in chosen:
        nodes = one.region.nodes
        for declined in _naming(one.region, names).declined:
            if declined.rule in asked:
                continue
            culprit = None if declined.culprit is None else node_info(nodes[declined.culprit])
            infos = tuple(map(node_info, one.kernels))
            yield NotFused(number, infos, declined.code, declined.reason, culprit, declined.rule)


def _nearest(group: Group, growth: Growth, names: Names) -> tuple[str, fx.Node | None]:
    """The rule that a group left over comes nearest to, its neighbours taken in."""
    node = next(iter(group.nodes))
    nodes = sorted(growth.around(node), key=lambda n: n._sort_key)
    found = names.nearest(nodes, node)
    if found is None:
        return "", None
    return found.rule, None if found.culprit is None else nodes[found.culprit]


def kernel_name(kernels: Sequence[fx.Node], key: str, rule: str = "") -> str:
    """Return a kernel's name: its rule, or the ops it fuses, and the start of its digest."""
    if rule and rule != POINTWISE:
        return f"fused_{rule}_{key[:6]}"
    words: list[str] = []
    for node in kernels:
        word = re.sub(r"\W", "_", target_name(node).split(".")[1]).strip("_")
        if word not in words and word not in ("to_copy", "to", "clone", "contiguous"):
            words.append(word)
    shown = words if len(words) <= 5 else [*words[:4], "etc"]
    return "_".join(["fused", *shown, key[:6]])
