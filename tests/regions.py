"""Kernels made from PyTorch functions for the tests: traced, lowered, evaluated, interpreted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from fuseopt.codegen.collapse import collapse
from fuseopt.codegen.generate import Candidate, Scratch, _candidate, generate
from fuseopt.codegen.schedule import Schedule
from fuseopt.graph.lift import is_free
from fuseopt.ir import dims
from fuseopt.ir.evaluate import evaluate
from fuseopt.ir.kernel import LoopKernel
from fuseopt.lower.region import Lowerings, Region
from fuseopt.runtime.cache import Store
from fuseopt.runtime.call import realign
from fuseopt.runtime.interpret import interpret
from fuseopt.verify.compare import judge
from fuseopt.verify.truth import run_truth

Function = Callable[..., Any]
Sizes = dict[Any, int]


def trace(function: Function, *args: torch.Tensor, dynamic: bool = False) -> fx.GraphModule:
    """The ATen graph of a function, whose results become a tuple. `dynamic`: sizes are symbols."""

    def give_tuple(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = function(*given)
        return tuple(made) if isinstance(made, (tuple, list)) else (made,)

    with torch.no_grad():
        mode = "symbolic" if dynamic else "fake"
        return make_fx(give_tuple, tracing_mode=mode, pre_dispatch=True)(*args)


def node_of(gm: fx.GraphModule, op: str) -> fx.Node:
    """The only node that calls an ATen op of that name."""
    (found,) = (n for n in gm.graph.nodes if str(n.target).startswith(f"aten.{op}."))
    return found


@dataclass(frozen=True)
class Case:
    """A function as one region, with inputs for its kernel and what PyTorch gives for them."""

    gm: fx.GraphModule
    region: Region
    args: tuple[torch.Tensor, ...]
    eager: tuple[torch.Tensor, ...]

    @property
    def kernel(self) -> LoopKernel:
        return self.region.kernel

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The kernel's inputs in its order."""
        places = dict(self._given())
        return [realign(places[n]) for n in self.region.inputs]

    def _given(self) -> Iterator[tuple[fx.Node, torch.Tensor]]:
        return zip(self.gm.graph.find_nodes(op="placeholder"), self.args, strict=True)

    @property
    def sizes(self) -> Sizes:
        """The value of each size symbol of the kernel."""
        known: dict[Any, int] = {}
        for node, arg in self._given():
            fake = node.meta["val"]
            numbers = zip((*fake.shape, *fake.stride()), (*arg.shape, *arg.stride()), strict=True)
            for size, number in numbers:
                if isinstance(size, torch.SymInt):
                    known[size.node.expr] = number
        return {own: known[symbol] for symbol, own in self.region.symbols}

    def truth(self) -> tuple[torch.Tensor, ...]:
        """What the function gives in float64."""
        return run_truth(self.gm, self.args)

    def judge(self, results: Iterable[torch.Tensor]) -> None:
        """Fail unless results are as near to the truth as the numerics contract demands."""
        for ours, eager, truth in zip(results, self.eager, self.truth(), strict=True):
            assert ours.dtype == eager.dtype
            verdict = judge(ours, eager, truth)
            assert verdict.passed, verdict


def region_of(gm: fx.GraphModule, *, eagerly: bool = False) -> Region:
    """All operations of a graph as one region, whose outputs are the results below any views.

    eagerly: round where the original rounds.
    """
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    nodes = [n for n in calls if not is_free(n) and "sym_size" not in str(n.target)]
    outputs = [_computed(n) for n in gm.graph.output_node().args[0]]
    gm.graph.output_node().args = (tuple(outputs),)
    gm.recompile()
    return Lowerings(is_free, round_like_eager=eagerly).lower_region(nodes, outputs)


def case(
    function: Function, *args: torch.Tensor, dynamic: bool = False, eagerly: bool = False
) -> Case:
    """A function as one region, with what PyTorch gives for it."""
    gm = trace(function, *args, dynamic=dynamic)
    region = region_of(gm, eagerly=eagerly)
    with torch.no_grad():
        return Case(gm, region, args, tuple(gm(*args)))


def _computed(node: fx.Node) -> fx.Node:
    """The node whose memory a result lies in."""
    while is_free(node):
        node = node.args[0]
    return node


def lowered(function: Function, *args: torch.Tensor, **options: bool) -> Case:
    """A function as one region, whose lowering is checked by evaluation at every element."""
    made = case(function, *args, **options)
    results = evaluate(made.kernel, made.inputs, made.sizes)
    made.judge(results)
    for ours, eager in zip(results, made.eager, strict=True):
        sized = [d for d in range(eager.dim()) if eager.shape[d] != 1]
        assert [ours.stride(d) for d in sized] == [eager.stride(d) for d in sized]
    return made


def candidates(kernel: LoopKernel, sizes: Sizes, *, interpreted: bool = True) -> list[Candidate]:
    """Every candidate that code generation offers a device for a kernel."""
    return generate(kernel, "kernel", sizes, interpreted=interpreted, in_order=False)


def under(
    made: Case, choose: Callable[[LoopKernel], Schedule], *, interpreted: bool = True
) -> Candidate:
    """A region's kernel under a schedule that is made from its collapsed axes."""
    collapsed = collapse(made.kernel, made.sizes)
    return _candidate(collapsed, choose(collapsed), "kernel", "", interpreted)


def blank(kernel: LoopKernel, sizes: Sizes) -> list[torch.Tensor]:
    """Outputs full of what no kernel may leave there: NaN, or 77."""
    found = []
    for param in kernel.outputs:
        shape, strides = ([dims.hint(s, sizes) for s in n] for n in (param.shape, param.strides))
        made = torch.empty_strided(shape, strides, dtype=param.dtype)
        found.append(made.fill_(float("nan") if param.dtype.is_floating_point else 77))
    return found


def run(made: Case, candidate: Candidate, store: Store) -> list[torch.Tensor]:
    """The outputs of a candidate on a region's inputs, by Triton's interpreter.

    Programs that share a row wait for each other on a device. Here they run one after another
    without waiting, as often as rows are walked: each time, one more walk finds the partial values
    of the whole row.
    """
    sizes = made.sizes
    outputs = blank(made.kernel, sizes)
    scratch = [blank_scratch(s) for s in candidate.scratch(sizes)]
    source = candidate.source
    rounds = 1
    if candidate.schedule.parts > 1:
        text = source.text
        rounds = 1 + text.count("while arrived")
        text = text.replace("while arrived", "if False and arrived")
        source = replace(source, text=text)
    passed = [sizes[s] for s in candidate.symbols]
    for _ in range(rounds):
        grid = (candidate.grid(sizes),)
        interpret(source, grid, [*made.inputs, *outputs, *passed, *scratch], store)
    if candidate.last is not None:
        last = candidate.last
        passed = [sizes[s] for s in last.symbols]
        arguments = [*made.inputs, *scratch, *outputs, *passed]
        interpret(last.source, (last.grid(sizes),), arguments, store)
    return outputs


def blank_scratch(scratch: Scratch) -> torch.Tensor:
    """Memory for a kernel to work in, poisoned where it may hold anything."""
    if scratch.zeroed:
        return torch.zeros(scratch.count, dtype=scratch.dtype)
    fill = float("nan") if scratch.dtype.is_floating_point else 77
    return torch.full((scratch.count,), fill, dtype=scratch.dtype)


def check(made: Case, candidate: Candidate, store: Store) -> None:
    """Fail unless a candidate gives what PyTorch gives, within the numerics contract."""
    made.judge(run(made, candidate, store))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers, or small integers, the same on every call."""
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape))
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        low = 0 if dtype == torch.uint8 else -9
        return torch.randint(low, 10, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)
