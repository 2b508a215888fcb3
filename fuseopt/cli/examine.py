"""Examining a target ahead of time: captured, planned, kernels built and checked; run on a GPU.

`torch.export` captures a module as one graph. A module that it cannot capture, or a function, goes
through Dynamo, which splits it where it must and has to run it once to reach the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from fuseopt.cli.quiet import quiet
from fuseopt.cli.targets import Target
from fuseopt.compiler import Examined, emit_graph, examine_graph, run_original
from fuseopt.config import Config, Environment
from fuseopt.errors import CaptureError, FuseOptError, UsageError
from fuseopt.events import FellBack, GraphCaptured, Log, Reason
from fuseopt.graph.capture import Capture, require_dynamo
from fuseopt.graph.export import normalise_program
from fuseopt.graph.form import NormalisedGraph, count_kernels
from fuseopt.graph.functional import NotFunctionalError
from fuseopt.graph.normalise import Compiled, normalise
from fuseopt.pipeline import first_line
from fuseopt.program import ProgramCall
from fuseopt.runtime.cache import Store
from fuseopt.sites import can_launch

NOT_RUN = "there is no Triton device; kernels were built, and checked where shown"


@dataclass(slots=True)
class Examination:
    """What became of a target.

    graphs: each normalised graph with its sites and kernels, in order of their numbers.
    runs: whether kernels are to run, where they can. run: the optimised call where they do, None
        elsewhere.
    note: why `torch.export` did not capture the target, "" where it did.
    """

    target: Target
    config: Config
    environment: Environment
    log: Log
    graphs: list[tuple[NormalisedGraph, Examined]] = field(default_factory=list)
    runs: bool = True
    run: Callable[..., Any] | None = None
    note: str = ""


def examine(
    target: Target, config: Config, environment: Environment, log: Log, *, run: bool = True
) -> Examination:
    """Examine a target for inference; with `run`, call it once where kernels can be launched.

    Raises `UsageError` where the model itself fails on its inputs, `CaptureError` where it cannot
    be traced and `CacheError` where the cache directory cannot be used.
    """
    Store(environment.cache_dir)
    made = Examination(target, config, environment, log, runs=run)
    with quiet(), torch.no_grad():
        if not _through_export(made):
            if not made.target.has_data:
                made.target = made.target.with_data()
            if not _through_export(made):
                _through_dynamo(made)
    return made


def subject(made: Examination) -> str:
    """Return a report's heading: the target, what was chosen for it, and the device."""
    device = made.graphs[0][1].device if made.graphs else torch.device("cpu")
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    parts = [p for p in (made.target.about, where) if p]
    return f"{made.target.name}: {', '.join(parts)}"


# --- one graph, by export ------------------------------------------------------------------------


def _through_export(made: Examination) -> bool:
    target = made.target
    if not isinstance(target.model, (nn.Module, ExportedProgram)):
        return False  # its lines are not recorded: non-strict export knows those of modules only
    try:
        with made.log.timed("capture"):
            program = _program(target)
        with made.log.timed("normalise"):
            exported = normalise_program(program, 0)
    except FuseOptError:
        raise
    except NotFunctionalError as error:
        made.note = str(error)
        return False
    except Exception as error:  # torch.export raises what the model and its tracing raise
        made.note = first_line(error)
        return False
    made.note = ""
    number = made.log.next_graph()
    assert number == exported.graph.number
    run = _examine_graph(made, exported.graph)
    if run is not None:
        module = program.module()
        call = ProgramCall(exported, program, module, run, made.log)
        made.run = call
        call(*target.args, **target.kwargs)
    return True


def _program(target: Target) -> ExportedProgram:
    if isinstance(target.model, ExportedProgram):
        return target.model
    # torch.export prints the graph so far where it fails.
    with redirect_stderr(StringIO()):
        return torch.export.export(target.model, target.args, target.kwargs, strict=False)


# --- several graphs, by Dynamo -------------------------------------------------------------------


def _through_dynamo(made: Examination) -> None:
    target = made.target
    if isinstance(target.model, ExportedProgram):
        raise CaptureError(f"{target.name} has no functional form: {made.note}")
    require_dynamo()
    function = target.model.forward if isinstance(target.model, nn.Module) else target.model

    def compile_captured(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def compile_part(graph: NormalisedGraph) -> Compiled:
            return _examine_graph(made, graph) or run_original(graph.gm)

        return normalise(gm, inputs, compile_part, made.log.next_graph)

    capture = Capture(function, compile_captured, made.log)
    try:
        capture.call(*target.args, **target.kwargs)
    except FuseOptError:
        raise
    except Exception as error:  # the model's own: capture falls back by itself
        raise UsageError(f"{target.name}: calling the model raised {first_line(error)}") from error
    if any(can_launch(e.device, made.environment) for _, e in made.graphs):
        made.run = capture.call


def _examine_graph(made: Examination, graph: NormalisedGraph) -> Compiled | None:
    nodes = sum(n.op == "call_function" for n in graph.gm.graph.nodes)
    made.log.record(GraphCaptured(graph.number, graph.level, nodes, count_kernels(graph.gm)))
    examined = examine_graph(graph, made.config, made.environment, made.log)
    made.graphs.append((graph, examined))
    if not can_launch(examined.device, made.environment):
        made.log.record(FellBack(graph.number, Reason.NO_DEVICE, NOT_RUN))
        return None
    if not (made.runs and made.target.has_data):
        return None
    return emit_graph(graph, examined, made.config, made.log)
