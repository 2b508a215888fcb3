"""Planning a graph: constants folded, regions grown and chosen. Nothing is compiled here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuseopt.config import Config
from fuseopt.events import Log, NotFused
from fuseopt.fuse.classify import Role, classify, is_widening
from fuseopt.fuse.grow import grow
from fuseopt.fuse.select import Chosen, explain_rest, select
from fuseopt.graph.decompose import split_losses
from fuseopt.graph.extract import extract
from fuseopt.graph.fold import fold_constants
from fuseopt.graph.form import NormalisedGraph
from fuseopt.graph.gqa import share_heads
from fuseopt.graph.lift import target_name
from fuseopt.graph.masks import simplify_masks
from fuseopt.graph.symbols import hint_of, size_nodes
from fuseopt.lower.region import Lowerings, Region


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
class Plan:
    """What is to be done with a graph: its sites, and why the rest stays."""

    sites: tuple[Site, ...]
    rest: tuple[NotFused, ...]


def plan_graph(graph: NormalisedGraph, device: torch.device, config: Config, log: Log) -> Plan:
    """Fold a graph's constants in place and return the regions that should become kernels.

    device: where the graph's kernels run.
    """
    gm, number = graph.gm, graph.number
    split_losses(gm)
    with log.timed("fold", number):
        verdicts = classify(gm.graph.nodes, device)
        fold_constants(
            gm,
            lambda n: verdicts[n].role is Role.FREE,
            lambda n: verdicts[n].role is Role.FUSABLE,
        )
        simplify_masks(gm)
        share_heads(gm)
    with log.timed("grow", number):
        verdicts = classify(gm.graph.nodes, device)
        lowerings = Lowerings(
            lambda n: verdicts[n].role is Role.FREE or is_widening(n),
            round_like_eager=config.numerics == "eager",
        )
        growth = grow(gm.graph, verdicts, lowerings.lower_region)
        chosen, left = select(growth)
    sites = tuple(_site(gm.graph, c) for c in chosen)
    return Plan(sites, tuple(explain_rest(number, verdicts, left)))


def _site(graph: fx.Graph, chosen: Chosen) -> Site:
    region = chosen.region
    sizes = size_nodes(graph, [s for s, _ in region.symbols], region.inputs)
    reference = extract((*region.nodes, *region.through), region.inputs, region.outputs, sizes)
    return Site(chosen, kernel_name(chosen.kernels, region.key), "", sizes, reference)


def kernel_name(kernels: Sequence[fx.Node], key: str) -> str:
    """Return a kernel's name: the ops it fuses, shortened, and the start of its digest."""
    words: list[str] = []
    for node in kernels:
        word = re.sub(r"\W", "_", target_name(node).split(".")[1]).strip("_")
        if word not in words and word not in ("to_copy", "to", "clone", "contiguous"):
            words.append(word)
    shown = words if len(words) <= 5 else [*words[:4], "etc"]
    return "_".join(["fused", *shown, key[:6]])
