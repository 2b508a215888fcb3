"""Training, and whatever inference tracing refuses: AOTAutograd with an empty decomposition table.

AOTAutograd splits a Dynamo graph into a forward and a backward graph (the min-cut partitioner
decides what is saved and what is computed again) and wraps them in an `autograd.Function`; its
runtime wrapper restores what functional graphs lose: mutation of inputs, outputs that alias
them, autocast. A graph that turns out to need no gradients becomes one "inference" graph. These
graphs come after dispatch: composites are already split per device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import PlainAOTInput, TangentAOTInput
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fuseopt.graph.clean import inherit_locations
from fuseopt.graph.compared import mark_compared, save_compared
from fuseopt.graph.form import Input
from fuseopt.graph.joint import write_composites
from fuseopt.graph.parting import part
from fuseopt.graph.seeded_dropout import drop_unused_seeds, seed_dropouts
from fuseopt.graph.tangents import Backward, leave_undefined, spare_tangents

aten = torch.ops.aten

# (graph, level, what each placeholder is) -> the compiled graph, called with a list it may clear.
CompileLevel = Callable[[fx.GraphModule, str, tuple[Input, ...]], Callable[[list[Any]], Any]]


def trace_with_autograd(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    inputs: tuple[Input, ...],
    compile_level: CompileLevel,
    has_kernels: Callable[[torch.device], bool],
) -> Callable[..., Any]:
    """Return a function of the graph's inputs that runs what `compile_level` makes of its parts.

    `inputs` describes the placeholders of `gm`; `has_kernels` is for `seed_dropouts`. The backward
    graph is compiled when the forward one is, or in the first backward pass where it needs sizes
    known only then.
    """

    is_plain = not any(map(is_traceable_wrapper_subclass, example_inputs))
    spare: list[int] = []  # of the backward graph, once there is one

    def compiler(level: str) -> Callable[..., Callable[[list[Any]], Any]]:
        def compile_part(half: fx.GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], Any]:
            inherit_locations(half)
            _donate_nothing()
            if level == "backward" and spare:
                return _boxed(Backward(half, spare, make))
            return make(half)

        def make(half: fx.GraphModule) -> Callable[[list[Any]], Any]:
            return _boxed(compile_level(half, level, _describe(half, inputs, level)))

        return compile_part

    def partition(
        joint: fx.GraphModule, *args: Any, **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        seed_dropouts(joint, has_kernels)
        write_composites(joint, has_kernels)
        mark_compared(joint.graph)
        save_compared(joint.graph)
        forward, backward = part(joint, *args, **options)
        drop_unused_seeds(backward)
        _save_as_given(forward)
        if is_plain:
            spare.extend(spare_tangents(backward))
        return forward, backward

    run = aot_module_simplified(
        gm,
        example_inputs,
        fw_compiler=compiler("forward"),
        bw_compiler=_untraced(compiler("backward")),
        inference_compiler=compiler("inference"),
        partition_fn=partition,
        decompositions={},
        keep_inference_input_mutations=True,
    )

    def call(*args: Any) -> Any:
        since = torch._C._autograd._get_sequence_nr()
        outputs = run(*args)
        leave_undefined(outputs, since)
        return outputs

    return call if spare else run


def mutated_inputs(inputs: Sequence[Input]) -> frozenset[int]:
    """Return the places of the inputs that the graph just traced writes to."""
    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    told = getattr(metadata, "input_info", ())
    if len(told) != len(inputs):  # inputs that overlap were put together
        return frozenset(range(len(inputs)))
    return frozenset(place for place, info in enumerate(told) if info.mutates_data)


def _save_as_given(forward: fx.GraphModule) -> None:
    """Let the backward pass see inputs as the forward pass found them.

        s = add(steps, 1); copy_(steps, s)                      k = clone(steps); s = add(steps, 1)
        return mul(x, s), steps                         ->      copy_(steps, s); return mul(x, s), k

    The partitioner may save an input that the forward graph writes to, to compute from it again.
    """
    output = forward.graph.output_node()
    writes = forward.graph.find_nodes(op="call_function", target=aten.copy_.default)
    saved = [n for n in {w.args[0] for w in writes} if n in output.all_input_nodes]
    last_input = forward.graph.find_nodes(op="placeholder")[-1]
    for written in saved:
        with forward.graph.inserting_after(last_input):
            kept = forward.graph.call_function(aten.clone.default, (written,))
        kept.meta = dict(written.meta)
        output.replace_input_with(written, kept)
    if saved:
        forward.recompile()


def _donate_nothing() -> None:
    """Let a second backward pass over the same graph (`retain_graph=True`) run.

    AOTAutograd lists the saved tensors that a backward graph compiled early may overwrite, and
    refuses to run such a graph twice. Ours overwrites none of them.
    """
    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    donated = getattr(metadata, "bw_donated_idxs", None)
    if donated:
        donated.clear()  # one list, shared by everything that asks


def _describe(part: fx.GraphModule, inputs: tuple[Input, ...], level: str) -> tuple[Input, ...]:
    placeholders = part.graph.find_nodes(op="placeholder")
    if level == "backward":
        return tuple(_describe_backward(p) for p in placeholders)
    return tuple(_describe_forward(p, inputs) for p in placeholders)


def _describe_forward(placeholder: fx.Node, inputs: tuple[Input, ...]) -> Input:
    origin = placeholder.meta.get("desc")
    # Other origins (bases made up for aliased inputs, random seeds) are new on every call.
    return inputs[origin.idx] if isinstance(origin, PlainAOTInput) else Input("input")


def _describe_backward(placeholder: fx.Node) -> Input:
    is_tangent = isinstance(placeholder.meta.get("desc"), TangentAOTInput)
    named_so = str(placeholder.target).startswith("tangents")
    return Input("tangent" if is_tangent or named_so else "saved")


def _boxed(run: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def call(args: list[Any]) -> Any:
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined] # AOTAutograd's mark of "takes a list"
    return call


def _untraced(compiler: Callable[..., Any]) -> Callable[..., Any]:
    # The backward pass runs outside the frame that Dynamo compiled, so it would trace both.
    def compile_part(part: fx.GraphModule, examples: Sequence[Any]) -> Any:
        run = torch._dynamo.disable(compiler)(part, examples)
        return torch._dynamo.disable(run)

    return compile_part
