"""What is planned for PyTorch functions, for the tests: which operations become one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from regions import trace
from torch import fx

from fuseopt.config import Config
from fuseopt.events import Log, NotFused, Reason
from fuseopt.graph.form import Input, NormalisedGraph
from fuseopt.graph.lift import target_name
from fuseopt.plan import Plan, Site, plan_graph

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Planned:
    """The plan of a function's graph."""

    graph: NormalisedGraph
    plan: Plan

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.plan.sites

    @property
    def fused(self) -> list[list[str]]:
        """The ops of each kernel, kernels and ops in graph order."""
        found = sorted(self.plan.sites, key=lambda s: s.region.nodes[0]._sort_key)
        return [[op_of(n) for n in site.region.nodes] for site in found]

    @property
    def only(self) -> Site:
        (site,) = self.plan.sites
        return site

    def left(self, op: str) -> NotFused:
        """Why the only operation of that name stays with PyTorch."""
        (event,) = (e for e in self.plan.rest if any(n.op.split(".")[1] == op for n in e.nodes))
        return event

    def code(self, op: str) -> Reason:
        return self.left(op).code


def op_of(node: fx.Node) -> str:
    """A node's op without namespace and overload: "add"."""
    return target_name(node).split(".")[1]


def planned(
    function: Callable[..., Any], *args: torch.Tensor, dynamic: bool = False, **options: Any
) -> Planned:
    """Plan the graph of a function."""
    return plan_of(trace(function, *args, dynamic=dynamic), **options)


def plan_of(gm: fx.GraphModule, **options: Any) -> Planned:
    """Plan a graph. options: fields of `Config`."""
    gm.graph.eliminate_dead_code()
    inputs = tuple(Input("input") for _ in gm.graph.find_nodes(op="placeholder"))
    graph = NormalisedGraph(gm, "inference", 0, inputs)
    return Planned(graph, plan_graph(graph, CPU, Config(**options), Log()))
