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


def step(function: Callable[..., Tensors], args: Sequence[torch.Tensor]) -> Tensors:
    """The results of a program, then the gradients of its inputs, for drawn ones of the results."""
    leaves = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    results = function(*leaves)
    rooted = [r for r in results if r.requires_grad]
    if not rooted:
        return tuple(results)
    drawn = [random(*r.shape, dtype=r.dtype, seed=50 + n) for n, r in enumerate(rooted)]
    wanted = [a for a in leaves if a.requires_grad]
    gradients = torch.autograd.grad(rooted, wanted, drawn, allow_unused=True)
    return (*(r.detach() for r in results), *(g for g in gradients if g is not None))


@given(differentiable_programs())
def test_gradients_of_an_optimised_program_are_those_of_the_original(program: Program):
    assume(program.outputs)
    note(program.text)
    torch._dynamo.reset()
    function = program.function()
    optimized = fuseopt.optimize(function)

    ours = step(optimized, program.args)

    graph = make_fx(lambda *args: step(function, args))(*program.args)
    note("\n".join(map(str, optimized.log.of(RolledBack))))
    assert not optimized.log.of(RolledBack)
    assert not optimized.log.of(FellBack)
    assert not optimized.log.of(GraphBroken)
    verdict = judge_outputs(lambda: (ours, [None] * len(ours)), graph, program.args)
    assert verdict.passed, verdict
