"""From an exported program to a normalised graph, and the way its inputs reach it.

An exported graph takes parameters, buffers and constants first, then the caller's inputs, both
flat; a program saved after decomposition returns new values of buffers and inputs it updates.
Here the updates become writes, as in the form every pass expects:

    return (add, relu)   # add: new value of buffer `n`   ->   aten.copy_(n, add); return (relu,)
"""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, TensorArgument

from fuseopt.errors import UsageError
from fuseopt.graph.dropout import without_idle_dropout
from fuseopt.graph.expected import Expected
from fuseopt.graph.form import Input, NormalisedGraph, check_form, written_inputs
from fuseopt.graph.functional import NotFunctionalError, trace_functional
from fuseopt.graph.overlap import overlap_test

aten = torch.ops.aten

_KINDS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "buffer",
}
_UPDATES = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.PARAMETER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
)


@dataclass(frozen=True, slots=True)
class ProgramGraph:
    """The graph of an exported program.

    graph: its placeholders are the tensors named by `owned`, then the inputs at `taken`.
    owned: dotted paths of parameters, buffers and constants in `program.module()`.
    taken: positions in the flat list of the caller's inputs; constants among them are not taken.
    expected: what those inputs have to be.
    overlaps: whether the graph's inputs share memory as it needs them to, None where it is right
        however they do.
    """

    graph: NormalisedGraph
    owned: tuple[str, ...]
    taken: tuple[int, ...]
    expected: Expected
    overlaps: Callable[[Sequence[Any]], bool] | None


def load_program(path: str | os.PathLike[str]) -> ExportedProgram:
    """Load a saved program; `UsageError` where the file is missing or is not one."""
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path}")
    if not zipfile.is_zipfile(path):  # torch would log its own account of it first
        raise UsageError(f"{path} is not a program saved by torch.export.save: not a zip archive")
    logged: list[BaseException] = []
    try:
        with _errors_of_loading(logged):
            return torch.export.load(path)
    except Exception as error:  # of many types, by what is wrong with the file
        cause = (*logged, error)[0]
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        raise UsageError(
            f"{path} is not a program saved by torch.export.save: {lines[0]}"
        ) from error


@contextmanager
def _errors_of_loading(found: list[BaseException]) -> Iterator[None]:
    """Collect the errors that torch writes to its log, with their tracebacks, as it loads."""

    def collect(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            found.append(error)
        return error is None

    logger = logging.getLogger("torch.export")
    logger.addFilter(collect)
    try:
        yield
    finally:
        logger.removeFilter(collect)


def normalise_program(program: ExportedProgram, number: int) -> ProgramGraph:
    """Bring an exported program to normal form, as inference; `NotFunctionalError` says why not.

    The program itself is not changed.
    """
    gm = without_idle_dropout(_copy_with_writes(program))
    specs = program.graph_signature.input_specs
    placeholders = gm.graph.find_nodes(op="placeholder")
    kept = [
        (spec, node)
        for spec, node in zip(specs, placeholders, strict=True)
        if _is_needed(spec, node)
    ]
    for node in set(placeholders) - {node for _, node in kept}:
        gm.graph.erase_node(node)
    gm.recompile()
    owned = [(s, n) for s, n in kept if s.kind in _KINDS]
    users = [s for s in specs if s.kind is InputKind.USER_INPUT]
    taken = [(s, n) for s, n in kept if s.kind is InputKind.USER_INPUT]
    if len(owned) + len(taken) < len(kept):
        raise NotFunctionalError("an input is neither a tensor nor a number")
    examples = [n.meta["val"] for _, n in (*owned, *taken)]
    with torch.no_grad():
        traced = trace_functional(gm, examples)
    inputs = (
        *(Input(_KINDS[s.kind], s.target or "") for s, _ in owned),
        *(Input("input") for _ in taken),
    )
    graph = NormalisedGraph(traced, "inference", number, inputs)
    check_form(graph)
    return ProgramGraph(
        graph,
        owned=tuple(s.target or "" for s, _ in owned),
        taken=tuple(users.index(s) for s, _ in taken),
        expected=Expected(tuple(n.meta["val"] for _, n in taken), program.range_constraints),
        overlaps=overlap_test(inputs, examples, written_inputs(traced)),
    )


def _is_needed(spec: InputSpec, node: fx.Node) -> bool:
    # A Python constant was specialised on and appears in no operation.
    is_tensor = isinstance(spec.arg, TensorArgument)
    return is_tensor or bool(node.users) or isinstance(node.meta.get("val"), torch.SymInt)


def _copy_with_writes(program: ExportedProgram) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    outputs = graph.graph_copy(program.graph, copies)
    assert isinstance(outputs, tuple)
    signature = program.graph_signature
    names = {s.target: s.arg.name for s in signature.input_specs if s.target is not None}
    placeholders = {n.name: copies[n] for n in program.graph.find_nodes(op="placeholder")}
    returned = []
    for spec, value in zip(signature.output_specs, outputs, strict=True):
        if spec.kind in _UPDATES:
            name = names.get(spec.target, spec.target)
            graph.call_function(aten.copy_.default, (placeholders[name], value))
        elif spec.kind is OutputKind.USER_OUTPUT:
            returned.append(value)
        else:
            raise NotFunctionalError(f"the program returns a {spec.kind.name.lower()}")
    graph.output(tuple(returned))
    return fx.GraphModule(program.graph_module, graph)
