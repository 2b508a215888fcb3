"""Compiling one normalised graph: plan, build, verify, splice, emit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.graph import _BoxedCodeGen
from torch.utils._python_dispatch import _disable_current_modes

from fuseopt.config import Config, Environment
from fuseopt.events import FellBack, Log, Planned, Reason
from fuseopt.graph.form import NormalisedGraph, copy_graph
from fuseopt.graph.normalise import Compiled
from fuseopt.graph.splice import splice
from fuseopt.plan import Site, plan_graph
from fuseopt.runtime.build import Builder
from fuseopt.runtime.emit import emit
from fuseopt.sites import (
    Kernels,
    build_sites,
    calls_of,
    can_launch,
    device_of,
    distinct,
    drop_slower,
    record_sites,
    verify_sites,
)
from fuseopt.verify.graph import FirstCallCheck


def compile_graph(
    graph: NormalisedGraph, config: Config, environment: Environment, log: Log
) -> Compiled:
    """Compile one normalised graph to a function of a list of its inputs, which it may clear.

    The function's attribute `source`, where it has one, is the code that is shown for it.
    """
    # AOTAutograd compiles under its fake tensor mode; kernels are tried on real tensors.
    with _disable_current_modes():
        return _compile(graph, config, environment, log)


def examine_graph(
    graph: NormalisedGraph, config: Config, environment: Environment, log: Log
) -> Examined:
    """Do all but run: plan, build and verify a graph's kernels, by interpreter on the CPU."""
    with _disable_current_modes():
        return _examine(graph, config, environment, log)


@dataclass(frozen=True, slots=True)
class Examined:
    """The sites of a graph, and the kernels of those that are in use, by structural key."""

    device: torch.device
    sites: tuple[Site, ...]
    kernels: Kernels


def _examine(
    graph: NormalisedGraph, config: Config, environment: Environment, log: Log
) -> Examined:
    device = device_of(graph.gm)
    plan = plan_graph(graph, device, config, log)
    for event in plan.rest:
        log.record(event)
    log.record(Planned(graph.number, len(plan.sites), len(distinct(plan.sites))))
    builder = Builder(device, environment)
    kernels = build_sites(plan.sites, builder, graph.number, log)
    if config.verify:
        kernels = verify_sites(plan.sites, kernels, graph.number, config, log)
    if device.type == "cuda" and environment.tune:
        kernels = drop_slower(plan.sites, kernels, builder, graph.number, log)
    record_sites(plan.sites, kernels, graph.number, log)
    return Examined(device, plan.sites, kernels)


def _compile(
    graph: NormalisedGraph, config: Config, environment: Environment, log: Log
) -> Compiled:
    device = device_of(graph.gm)
    if not can_launch(device, environment):
        log.record(FellBack(graph.number, Reason.NO_DEVICE, f"no Triton device: runs on {device}"))
        plan = plan_graph(graph, device, config, log)
        for event in plan.rest:
            log.record(event)
        record_sites(plan.sites, {}, graph.number, log, planned=True)
        return run_original(graph.gm)
    return emit_graph(graph, _examine(graph, config, environment, log), config, log)


def emit_graph(graph: NormalisedGraph, made: Examined, config: Config, log: Log) -> Compiled:
    """Return an examined graph as a function, which checks itself when it is first called."""
    spliced = splice(graph.gm, calls_of(made.sites, made.kernels))
    emitted = emit(spliced, f"graph_{graph.number}", made.device, graph.level)
    if not config.verify or not made.kernels:
        return emitted.run
    check = FirstCallCheck(
        emitted.run, run_original(graph.gm), graph.gm, graph.number, log, config.strict
    )
    return with_source(check, emitted.text)


def with_source(run: Compiled, text: str) -> Compiled:
    """Return a plain function that calls `run`, with the code that is shown for it."""

    def call(args: list[Any]) -> Sequence[Any]:
        return run(args)

    call.source = text  # type: ignore[attr-defined]
    return call


def run_original(gm: fx.GraphModule) -> Compiled:
    """Return a graph's own operations as a function of a list of inputs, which it empties."""
    boxed = copy_graph(gm)
    boxed.graph.set_codegen(_BoxedCodeGen())
    boxed.recompile()
    return boxed.forward
