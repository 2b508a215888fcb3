"""Gradients of random programs: those of the optimised program are as near to float64 as eager's.

HYPOTHESIS_EXAMPLES=400 draws that many programs, others than the usual ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import assume, given, note
from programs import Program, differentiable_programs
from regions import random
from torch.fx.experimental.proxy_tensor import make_fx

import fuseopt
from fuseopt.events import FellBack, GraphBroken, RolledBack
from fuseopt.verify.outputs import judge_outputs

Tensors = tuple[torch.Tensor, ...]


@pytest.fixture(scope="module", autouse=True)
def interpreted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSEOPT_INTERPRET", "1")
        patch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def drawn_for(results: Tensors) -> Tensors:
    """A gradient for each result of a program."""
    return tuple(random(*r.shape, dtype=r.dtype, seed=50 + n) for n, r in enumerate(results))


def step(
    function: Callable[..., Tensors], args: Sequence[torch.Tensor], drawn: Sequence[torch.Tensor]
) -> Tensors:
    """The results of a program, then the gradients of its inputs, for given ones of the results."""
    leaves = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    results = function(*leaves)
    rooted = [(r, g) for r, g in zip(results, drawn, strict=True) if r.requires_grad]
    if not rooted:
        return tuple(results)
    wanted = [a for a in leaves if a.requires_grad]
    gradients = torch.autograd.grad(
        [r for r, _ in rooted], wanted, [g for _, g in rooted], allow_unused=True
    )
    return (*(r.detach() for r in results), *(g for g in gradients if g is not None))


@given(differentiable_programs())
def test_gradients_of_an_optimised_program_are_those_of_the_original(program: Program):
    assume(program.outputs)
    note(program.text)
    torch._dynamo.reset()
    function = program.function()
    optimized = fuseopt.optimize(function)

    drawn = drawn_for(function(*program.args))

    ours = step(optimized, program.args, drawn)

    graph = make_fx(lambda *args: step(function, args, drawn))(*program.args)
    note("\n".join(map(str, optimized.log.of(RolledBack))))
    assert not optimized.log.of(RolledBack)
    assert not optimized.log.of(FellBack)
    assert not optimized.log.of(GraphBroken)
    verdict = judge_outputs(lambda: (ours, [None] * len(ours)), graph, program.args)
    assert verdict.passed, verdict
