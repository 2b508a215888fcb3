"""Kernels that are wrong are found, told and rolled back; checking leaves no trace."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from plans import planned
from regions import random

import fuseopt
from fuseopt.config import read_environment
from fuseopt.errors import VerificationError
from fuseopt.events import FellBack, NotFused, Reason, RegionFused, RolledBack, Verified
from fuseopt.ir.kernel import LoopKernel, TensorParam
from fuseopt.runtime import build
from fuseopt.runtime.build import Builder, Order
from fuseopt.runtime.samples import index_limits
from fuseopt.verify import check as check_module
from fuseopt.verify.check import check_region
from fuseopt.verify.inputs import input_sets

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))


@pytest.fixture
def corrupt(monkeypatch):
    """Make code generation print one thing in place of another."""

    def replacing(right: str, wrong: str) -> None:
        generate = build.generate

        def wrongly(*args, **options):
            found = generate(*args, **options)
            for candidate in found:
                assert right in candidate.source.text
            texts = [c.source.text.replace(right, wrong) for c in found]
            return [
                replace(c, source=replace(c.source, text=t))
                for c, t in zip(found, texts, strict=True)
            ]

        monkeypatch.setattr(build, "generate", wrongly)

    return replacing


def verdict_on(function, *args, **options) -> Verified:
    """Check the one kernel of a function as compilation does."""
    site = planned(function, *args, **options).only
    builder = Builder(CPU, read_environment())
    symbols = tuple(own for _, own in site.region.symbols)
    hints = tuple(site.hints[s] for s in symbols)
    order = Order(site.region.key, site.name, "", site.region.kernel, symbols, hints)
    kernel = builder.build([order])[site.region.key]
    return check_region(site.region.key, kernel, site.reference, site.hints, hints)


def activated(x, y):
    return torch.exp(x * 0.5) + y


X, Y = random(8, 64), random(8, 64, seed=1)


# ------------------------------------------------------------------------------- wrong kernels


WRONG = {
    "another function": (activated, "tl.exp(", "tl.exp2("),
    "another operand": (activated, "+ v", "- v"),
    "a slightly wrong constant": (activated, "0.5", "0.50001"),
    "a forgotten element": (activated, "tl.store(out0 + (x), ", "tl.store(out0 + (x // 2 * 2), "),
    "NaN that is lost": (
        lambda x, y: torch.maximum(x * 2, y),
        "propagate_nan=tl.PropagateNan.ALL",
        "propagate_nan=tl.PropagateNan.NONE",
    ),
    "a row that overflows": (
        lambda x, y: F.softmax(x + y, -1),
        "tl.max(v",
        "0.0 * tl.max(v",
    ),
    "a wrong epsilon": (lambda x, y: F.layer_norm(x, (64,)) + y, "+ 1e-05", "+ 2e-05"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found_out(name, corrupt):
    function, right, wrong = WRONG[name]
    assert verdict_on(function, X, Y).passed

    corrupt(right, wrong)
    verdict = verdict_on(function, X, Y)

    assert not verdict.passed
    assert "inputs: output 0" in verdict.detail
    assert "element [" in verdict.detail


def test_an_access_out_of_bounds_is_a_failed_check(corrupt):
    corrupt("tl.load(in0 + (x)", "tl.load(in0 + (x + 1000)")

    verdict = verdict_on(activated, X, Y)

    assert not verdict.passed
    assert "IndexError" in verdict.detail


def optimized(function=activated, **options):
    def call(x, y):
        return function(x, y)

    return fuseopt.optimize(call, **options)


@torch.no_grad()
def test_a_wrong_kernel_is_rolled_back_and_told(corrupt):
    corrupt("tl.exp(", "tl.exp2(")
    function = optimized()

    result = function(X, Y)

    assert torch.equal(result, activated(X, Y))
    (event,) = function.log.of(RolledBack)
    assert event.code is Reason.WRONG
    assert "disagrees with the operations it replaces: plain inputs: output 0, element [" in (
        event.reason
    )
    assert "the original gives" in event.reason
    assert "exact is" in event.reason
    assert event.reason.endswith(f"; see {event.source_path}")
    assert "tl.exp2(" in Path(event.source_path).read_text()
    assert not function.log.of(RegionFused)
    assert any(e.code is Reason.WRONG for e in function.log.of(NotFused))


@torch.no_grad()
def test_strict_raises_where_a_kernel_is_wrong(corrupt):
    corrupt("tl.exp(", "tl.exp2(")
    function = optimized(strict=True)

    with pytest.raises(VerificationError, match=r"disagrees .* element \[.*; see /"):
        function(X, Y)


@torch.no_grad()
def test_without_verification_a_wrong_kernel_is_used(corrupt):
    """What the check is there for."""
    corrupt("tl.exp(", "tl.exp2(")
    function = optimized(verify=False)

    result = function(X, Y)

    torch.testing.assert_close(result, torch.exp2(X * 0.5) + Y)
    assert not function.log.of(Verified)


@torch.no_grad()
def test_a_kernel_that_does_not_run_is_left_out(corrupt):
    corrupt("tl.exp(", "tl.missing(")
    function = optimized()

    assert torch.equal(function(X, Y), activated(X, Y))
    (event,) = function.log.of(RolledBack)
    assert "missing" in event.reason
    assert not function.log.of(FellBack)


@torch.no_grad()
def test_a_right_kernel_beside_a_wrong_one_stays(monkeypatch):
    weight = random(64, 96)

    def both(x, y):
        return torch.exp(x * 0.5) + y, F.softmax(torch.sin(x @ weight), -1)

    generate = build.generate

    def wrongly(*args, **options):
        (candidate, *_) = generate(*args, **options)
        text = candidate.source.text
        text = text if "tl.sin(" in text else text.replace("tl.exp(", "tl.exp2(")
        return [replace(candidate, source=replace(candidate.source, text=text))]

    monkeypatch.setattr(build, "generate", wrongly)
    function = optimized(both)
    results = function(X, Y)

    assert len(function.log.of(RolledBack)) == len(function.log.of(RegionFused)) == 1
    for ours, eager in zip(results, both(X, Y), strict=True):
        torch.testing.assert_close(ours, eager)


# ------------------------------------------------------------------------------------ no trace


@torch.no_grad()
def test_checking_leaves_inputs_buffers_and_random_state_alone():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(64)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x, y):
            self.count.add_(1)
            return F.gelu(self.norm(x) + y)

    model = Model()
    x, y = X.clone(), Y.clone()
    weights = {n: p.clone() for n, p in model.named_parameters()}
    state = torch.get_rng_state()

    optimized_model = fuseopt.optimize(model, (x, y))

    assert optimized_model.log.of(Verified)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    assert model.count == 0
    assert all(torch.equal(p, weights[n]) for n, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


@torch.no_grad()
def test_only_the_first_programs_of_a_large_grid_are_interpreted(monkeypatch):
    grids = []
    interpret = build.Builder._interpreted

    def counting(self, candidate):
        built = interpret(self, candidate)

        def launch(x, *rest):
            grids.append(x)
            built.launch(x, *rest)

        return replace(built, launch=launch)

    monkeypatch.setattr(build.Builder, "_interpreted", counting)

    verdict = verdict_on(activated, random(4096, 64), random(4096, 64))

    assert verdict.passed
    assert set(grids) == {check_module.INTERPRETED_PROGRAMS}


def test_what_was_not_computed_is_not_judged_but_what_was_is(corrupt):
    assert verdict_on(activated, random(4096, 64), random(4096, 64)).passed

    corrupt("tl.exp(", "tl.exp2(")
    assert not verdict_on(activated, random(4096, 64), random(4096, 64)).passed


# ---------------------------------------------------------------------------------- the inputs


def kernel_of(*params: TensorParam) -> LoopKernel:
    return LoopKernel((), (), params, (), ())


def param(*shape: int, dtype: torch.dtype = torch.float32) -> TensorParam:
    return TensorParam(dtype, shape, torch.empty(shape).stride())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_inputs_are_plain_uneven_and_special(dtype):
    sets = dict(input_sets(kernel_of(param(16, 64, dtype=dtype)), CPU, {}))

    assert list(sets) == ["plain", "uneven", "special"]
    (plain,), (uneven,), (special,) = (sets[n] for n in sets)
    assert 0.8 < plain.float().std() < 1.2
    assert uneven.isfinite().all()
    assert uneven.float().abs().max() > 99
    assert (uneven == 0).any()
    assert (uneven[0] == uneven[0, 0]).all(), "a constant row"
    assert special.isnan().any()
    assert (special == math.inf).any()
    assert (special == -math.inf).any()


def test_not_a_number_meets_numbers_in_the_other_inputs():
    """Where all inputs had it in one place, a maximum that loses NaN would pass."""
    sets = dict(input_sets(kernel_of(param(16, 64), param(16, 64), param(16, 64)), CPU, {}))

    together = torch.stack(sets["special"]).isnan().sum(0)

    assert together.sum() == 3
    assert together.max() == 1


def test_integers_and_bools_have_no_special_values():
    sets = dict(input_sets(kernel_of(param(64, dtype=torch.int64)), CPU, {}))

    assert list(sets) == ["plain"]


def test_indices_stay_inside_their_table():
    ids = torch.zeros(4, 8, dtype=torch.int64)
    kernel = planned(lambda t, i: F.embedding(i, t) * 2 + 1, random(5, 16), ids).only.region.kernel
    (place, limit) = next(iter(index_limits(kernel).items()))

    for _, tensors in input_sets(kernel, CPU, {}):
        assert limit == 5
        assert 0 <= tensors[place].min() <= tensors[place].max() < 5


def test_numbers_that_indices_are_computed_from_stay_plain():
    """NaN is no index: on a device the kernel that meets one, or PyTorch, ends the process."""

    def function(table, x):
        return table.gather(1, (x.abs() * 2).clamp(max=4).long()) * x

    table, x = random(4, 5), random(4, 5, seed=1)
    site = planned(function, table, x).only

    sets = dict(input_sets(site.region.kernel, CPU, {}))
    assert all(site.reference(*tensors)[0].shape == (4, 5) for tensors in sets.values())
    assert any(t.isnan().any() for t in sets["special"])
    assert verdict_on(function, table, x).passed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, t: F.binary_cross_entropy(x, t, reduction="none") * 2, id="given"),
        pytest.param(lambda x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid()), id="computed"),
    ],
)
def test_an_op_that_refuses_values_is_checked_on_any(function, dtype):
    """On a device the assertion of the original would end the process, not only the check."""
    part = torch.rand(8, 64, generator=torch.Generator().manual_seed(0), dtype=dtype)

    assert verdict_on(function, part, part.flip(0)).passed


def test_a_wrong_kernel_of_an_op_that_refuses_values_is_found_out(corrupt):
    corrupt("-100.0", "-1.0")
    part = torch.rand(8, 64, generator=torch.Generator().manual_seed(0))

    assert not verdict_on(lambda x, t: F.binary_cross_entropy(x, t) * 2, part, part).passed


def test_inputs_are_the_same_each_time_and_draw_nothing_from_the_global_state():
    state = torch.get_rng_state()
    first, second = (dict(input_sets(kernel_of(param(8, 8)), CPU, {})) for _ in range(2))

    assert torch.equal(first["plain"][0], second["plain"][0])
    assert torch.equal(torch.get_rng_state(), state)


def test_symbolic_sizes_are_checked_at_their_example_values():
    assert verdict_on(activated, X, Y, dynamic=True).passed


def test_a_check_that_would_take_most_of_the_memory_is_not_run(monkeypatch):
    monkeypatch.setattr(check_module, "free_memory", lambda device: 100_000)

    verdict = verdict_on(lambda x: F.gelu(x * 2), random(64, 64))

    assert verdict.passed
    assert verdict.how.startswith("not run")


def test_a_table_counts_with_the_rows_that_are_drawn_of_it(monkeypatch):
    monkeypatch.setattr(check_module, "free_memory", lambda device: 2 * 1024 * 8 * 8 * 6 + 1000)
    table, places = random(50_000, 8), torch.arange(6)

    verdict = verdict_on(lambda t, p: torch.embedding(t, p) * 2 + 1, table, places)

    assert verdict.passed
    assert verdict.how == "interpreter"
