"""Make optimised modules, functions and programs: capture, compile, wrap."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from fuseopt.config import Config, read_environment
from fuseopt.events import Log
from fuseopt.graph.capture import Capture, require_dynamo
from fuseopt.graph.export import load_program, normalise_program
from fuseopt.graph.functional import NotFunctionalError
from fuseopt.pipeline import Session, compile_captured, compile_part
from fuseopt.program import ProgramCall
from fuseopt.verify.watch import Watch
from fuseopt.wrap import Optimized, OptimizedFunction, details_of, wrap_module

Examples = tuple[tuple[Any, ...], dict[str, Any]]

# Modules that call one opaque kernel for a whole layer in evaluation mode.
_WITH_FASTPATH = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)


def unwrap(model: Any) -> Any:
    """Return the original of an optimised object, anything else as it is."""
    details = details_of(model)
    return model if details is None else details.original


def optimize_callable(
    model: Any, config: Config, examples: Examples | None = None, *, watch: Watch | None = None
) -> Any:
    """Optimise a module or function; compile it now where example inputs are given.

    watch: looks at each kernel as the graphs run.
    """
    require_dynamo()
    session = Session(config, Log(), watch=watch)
    is_module = isinstance(model, nn.Module)

    def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_captured(gm, example_inputs, session, read_environment())

    capture = Capture(
        model.forward if is_module else model,
        compile_graph,
        session.log,
        dynamic=config.dynamic,
        strict=config.strict,
    )
    around = _without_fastpath if _has_fastpath(model) else _as_it_is
    if examples is not None:
        trains = not is_module or model.training
        around(capture.compile_ahead)(*examples, backward=trains)
    details = Optimized(
        original=model,
        config=config,
        call=around(capture.call),
        log=session.log,
        source=session.source,
        copied=lambda original: optimize_callable(original, config),
        reduced=lambda: (optimize_callable, (model, config)),
    )
    return wrap_module(model, details) if is_module else OptimizedFunction(details)


def optimize_program(program: ExportedProgram | str | os.PathLike[str], config: Config) -> Any:
    """Optimise an exported program, or a saved one by its path, as a module called like it."""
    if not isinstance(program, ExportedProgram):
        program = load_program(program)
    session = Session(config, Log())
    try:
        with session.log.timed("normalise"):
            exported = normalise_program(program, session.log.next_graph())
    except NotFunctionalError:
        return optimize_callable(program.module(), config)
    run = compile_part(exported.graph, session, read_environment())

    def bind(module: nn.Module) -> Any:
        details = Optimized(
            original=module,
            config=config,
            call=ProgramCall(exported, program, module, run, session.log),
            log=session.log,
            source=session.source,
            copied=bind,
            reduced=lambda: (_load_saved, (_save(program), config)),
        )
        return wrap_module(module, details)

    return bind(program.module())


def _save(program: ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _load_saved(saved: bytes, config: Config) -> Any:
    return optimize_program(torch.export.load(io.BytesIO(saved)), config)


def _has_fastpath(model: Any) -> bool:
    return isinstance(model, nn.Module) and any(
        isinstance(m, _WITH_FASTPATH) for m in model.modules()
    )


def _as_it_is(call: Callable[..., Any]) -> Callable[..., Any]:
    return call


def _without_fastpath(call: Callable[..., Any]) -> Callable[..., Any]:
    """Run a call with the opaque encoder kernel off, so that a layer's operations are seen.

    Dynamo guards the switch, so it has to be off on every call, not only while compiling.
    """

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        was_enabled = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return call(*args, **kwargs)
        finally:
            torch.backends.mha.set_fastpath_enabled(was_enabled)

    return run
