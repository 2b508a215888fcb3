"""From Dynamo's graph to normalised graphs: one before dispatch, or those of AOTAutograd.

Inference goes before dispatch, where composites (`linear`, `layer_norm`, `softmax`,
`scaled_dot_product_attention`) are single nodes and the graph is the same on every device.
Training and what that form cannot hold (autocast, higher-order operators, tensor subclasses,
outputs that alias an updated input) goes through AOTAutograd.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.exc import RestartAnalysis

from fuseopt.graph.autograd import mutated_inputs, trace_with_autograd
from fuseopt.graph.compared import mark_compared
from fuseopt.graph.constant_masks import without_constant_masks
from fuseopt.graph.dropout import with_dropout_out_of_place, without_idle_dropout
from fuseopt.graph.form import (
    Input,
    NormalisedGraph,
    check_form,
    output_values,
    written_inputs,
)
from fuseopt.graph.functional import trace_functional
from fuseopt.graph.locate import dotted_path
from fuseopt.graph.overlap import held_to_overlaps, overlap_test
from fuseopt.graph.pair import Pair

_logger = logging.getLogger(__name__)

# What the compiler makes of a graph: called with a list (which it may clear), returns a sequence.
Compiled = Callable[[list[Any]], Sequence[Any]]


def normalise(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_graph: Callable[[NormalisedGraph], Compiled],
    next_number: Callable[[], int],
    has_kernels: Callable[[torch.device], bool] = lambda _: False,
    as_written: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Bring a Dynamo graph to normal form and return a function of its inputs.

    Every normalised graph goes through `compile_graph`; `next_number` gives each its number.
    has_kernels: whether kernels run on a device, which then draw dropout's random numbers.
    as_written: runs calls whose inputs share memory in another way, by default as Dynamo captured
    them.
    """
    inputs = describe_inputs(gm, example_inputs)
    captured = as_written or gm.forward
    gm = with_dropout_out_of_place(without_idle_dropout(gm), has_kernels)

    pair = Pair()

    def compile_level(part: fx.GraphModule, level: str, what: tuple[Input, ...]) -> Compiled:
        graph = NormalisedGraph(_with_tuple_output(part), level, next_number(), what, pair)
        check_form(graph)
        mark_compared(part.graph)
        return compile_graph(graph)

    try:
        traced = trace_functional(gm, example_inputs)
    except RestartAnalysis:
        raise
    except Exception as reason:
        # `NotFunctionalError`, or an op whose composite form lacks a fake kernel; AOTAutograd
        # traces what it is made of.
        _logger.debug("traced after dispatch: %s", reason, exc_info=reason)
        gm = without_constant_masks(gm)
        run = trace_with_autograd(gm, example_inputs, inputs, compile_level, has_kernels)
        test = overlap_test(inputs, example_inputs, mutated_inputs(inputs))
        return held_to_overlaps(run, captured, test)
    test = overlap_test(inputs, example_inputs, written_inputs(traced))
    run = compile_level(traced, "inference", inputs)
    if any(node.target is torch._C._set_grad_enabled for node in gm.graph.nodes):
        run = _without_grad(run)
    return held_to_overlaps(lambda *args: run(list(args)), captured, test)


def describe_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> tuple[Input, ...]:
    """Say of each placeholder of a Dynamo graph whether it is a parameter, a buffer or an input."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    return tuple(
        _describe(getattr(node, "_dynamo_source", None), example)
        for node, example in zip(placeholders, example_inputs, strict=True)
    )


def _describe(source: Any, example: Any) -> Input:
    if source is None:
        return Input("input")
    text = source.name if isinstance(source.name, str) else source.name()
    if isinstance(example, torch.nn.Parameter):
        return Input("parameter", dotted_path(text))
    # `L['self']._modules['ln']._buffers['scale']`
    return Input("buffer", dotted_path(text)) if "._buffers[" in text else Input("input")


def _with_tuple_output(gm: fx.GraphModule) -> fx.GraphModule:
    output = gm.graph.output_node()
    if not isinstance(output.args[0], tuple):
        output.args = (output_values(output),)
        gm.recompile()
    return gm


def _without_grad(run: Compiled) -> Compiled:
    def call(args: list[Any]) -> Sequence[Any]:
        with torch.no_grad():
            return run(args)

    return call
