"""Random programs of declared operations: eager, evaluated and interpreted results agree.

HYPOTHESIS_EXAMPLES=400 draws that many programs, others than the usual ones.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, note
from plans import plan_of
from programs import Program, programs
from regions import trace
from torch import fx

import fuseopt
from fuseopt.events import FellBack, GraphBroken, RolledBack
from fuseopt.ir.evaluate import evaluate
from fuseopt.verify.outputs import judge_outputs


@pytest.fixture(scope="module", autouse=True)
def interpreted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSEOPT_INTERPRET", "1")
        patch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def assert_agree(ours, gm, inputs) -> None:
    verdict = judge_outputs(lambda: (ours, [None] * len(ours)), gm, inputs)
    assert verdict.passed, verdict


class Values(fx.Interpreter):
    """Runs a graph and keeps what each node gives."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.values: dict[fx.Node, object] = {}

    def run_node(self, n: fx.Node) -> object:
        self.values[n] = super().run_node(n)
        return self.values[n]


@given(programs())
@torch.no_grad()
def test_every_kernel_of_a_program_evaluates_to_what_it_replaces(program: Program):
    assume(program.outputs)
    note(program.text)
    gm = trace(program.function(), *program.args)
    found = plan_of(gm)
    run = Values(found.graph.gm)
    run.run(*program.args)

    for site in found.sites:
        note(str(site.region.nodes))
        inputs = [run.values[n] for n in site.region.inputs]
        assert_agree(evaluate(site.region.kernel, inputs), site.reference, inputs)


@given(programs())
@torch.no_grad()
def test_an_optimised_program_gives_what_the_original_gives(program: Program):
    assume(program.outputs)
    note(program.text)
    torch._dynamo.reset()
    function = program.function()
    kept = [a.clone() for a in program.args]
    optimized = fuseopt.optimize(function)

    ours = optimized(*program.args)

    note("\n".join(map(str, optimized.log.of(RolledBack))))
    assert not optimized.log.of(RolledBack)
    assert not optimized.log.of(FellBack)
    assert not optimized.log.of(GraphBroken)
    assert_agree(ours, trace(function, *program.args), program.args)
    assert all(torch.equal(a, b) for a, b in zip(program.args, kept, strict=True))
