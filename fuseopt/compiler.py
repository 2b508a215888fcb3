"""Compiling one normalised graph: plan, build, verify, splice, emit."""

from __future__ import annotations

from torch import fx
from torch.fx.graph import _BoxedCodeGen
from torch.utils._python_dispatch import _disable_current_modes

from fuseopt.config import Config, Environment
from fuseopt.events import FellBack, Log, Reason
from fuseopt.graph.form import NormalisedGraph, copy_graph
from fuseopt.graph.normalise import Compiled
from fuseopt.graph.splice import splice
from fuseopt.plan import plan_graph
from fuseopt.runtime.build import Builder
from fuseopt.runtime.emit import emit
from fuseopt.sites import (
    build_sites,
    calls_of,
    can_launch,
    device_of,
    drop_slower,
    record_sites,
    verify_sites,
)


def compile_graph(
    graph: NormalisedGraph, config: Config, environment: Environment, log: Log
) -> Compiled:
    """Compile one normalised graph to a function of a list of its inputs, which it may clear.

    The function's attribute `source`, where it has one, is the code that is shown for it.
    """
    # AOTAutograd compiles under its fake tensor mode; kernels are tried on real tensors.
    with _disable_current_modes():
        return _compile(graph, config, environment, log)


def _compile(
    graph: NormalisedGraph, config: Config, environment: Environment, log: Log
) -> Compiled:
    device = device_of(graph.gm)
    plan = plan_graph(graph, device, config, log)
    for event in plan.rest:
        log.record(event)
    if not can_launch(device, environment):
        log.record(FellBack(graph.number, Reason.NO_DEVICE, f"no Triton device: runs on {device}"))
        record_sites(plan.sites, {}, graph.number, log)
        return run_original(graph.gm)
    builder = Builder(device, environment)
    kernels = build_sites(plan.sites, builder, graph.number, log)
    if config.verify:
        kernels = verify_sites(plan.sites, kernels, graph.number, config, log)
    if device.type == "cuda" and environment.tune:
        kernels = drop_slower(plan.sites, kernels, builder, graph.number, log)
    spliced = splice(graph.gm, calls_of(plan.sites, kernels))
    emitted = emit(spliced, f"graph_{graph.number}", device)
    record_sites(plan.sites, kernels, graph.number, log)
    return emitted.run


def run_original(gm: fx.GraphModule) -> Compiled:
    """Return a graph's own operations as a function of a list of inputs, which it empties."""
    boxed = copy_graph(gm)
    boxed.graph.set_codegen(_BoxedCodeGen())
    boxed.recompile()
    return boxed.forward
