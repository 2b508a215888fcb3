"""The first call of a compiled graph is checked against its original operations."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from regions import random, trace

import fuseopt
from fuseopt import compiler
from fuseopt.compiler import run_original
from fuseopt.errors import VerificationError
from fuseopt.events import Log, Reason, RegionFused, RolledBack, Verified
from fuseopt.verify.graph import FirstCallCheck

X = random(8, 32)


def graph_of(function, *args):
    gm = trace(function, *args)
    gm.graph.eliminate_dead_code()
    return gm


def checked(function, run, *args, strict=False) -> tuple[FirstCallCheck, Log]:
    """A check of `run`, a function of the list of inputs, against a function's graph."""
    gm, log = graph_of(function, *args), Log()
    return FirstCallCheck(run, run_original(gm), gm, 0, log, strict), log


def twice(x):
    return x * 2, x + 1


def answering(*results):
    """A compiled graph that gives these results."""

    def run(args):
        args.clear()
        return results

    return run


def test_a_right_graph_gives_its_own_results():
    results = (X * 2, X + 1)
    check, log = checked(twice, answering(*results), X)

    given = check([X])

    assert given[0] is results[0]
    (verdict,) = log.of(Verified)
    assert (verdict.passed, verdict.key, verdict.how) == (True, "graph:0", "first call")
    assert not log.of(RolledBack)


def test_random_states_that_attention_leaves_are_not_compared():
    def attend(q):
        made = torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, False)
        return made[0] * 2, made[2], made[3]

    q = torch.empty(1, 2, 8, 16, device="meta")
    gm = graph_of(attend, q)
    y, state = torch.randn(8), torch.tensor(3)
    log = Log()

    def original(args):
        return y, torch.tensor(1), torch.tensor(2)

    for results, passes in (((y, state, state), True), ((y.double(), state, state), False)):
        check = FirstCallCheck(answering(*results), original, gm, 0, log, False)

        assert check([q])[0] is (results[0] if passes else y)

    first, second = log.of(Verified)
    assert (first.passed, second.passed) == (True, False)
    assert "output 0 of graph 0" in second.detail


@pytest.mark.parametrize(("off", "passes"), [(0.0, True), (0.9, False)])
def test_without_an_exact_result_the_last_digits_of_the_inputs_excuse_what_they_change(
    monkeypatch, off, passes
):
    """A sine of large numbers depends on their last digits."""

    def waves(x):
        return torch.sin(x * 1e6), x * 2

    def no_memory(*_):
        raise torch.OutOfMemoryError("no memory for float64")

    exact = torch.sin(X.double() * 1e6).float() + off
    check, log = checked(waves, answering(exact, X * 2), X)
    monkeypatch.setattr("fuseopt.verify.graph.run_truth", no_memory)

    check([X])

    (verdict,) = log.of(Verified)
    assert verdict.passed is passes
    assert verdict.error > verdict.limit


def test_numbers_that_only_the_exact_result_lacks_too_are_lost():
    """Where nothing equals what was rounded, float64 divides zero by zero as well."""
    largest = X.amax(-1)
    shares = (largest[:, None] == X).float()

    def gradient(x, largest):
        same = (x * 1.0 == largest[:, None] + 1e-9).float()
        return same / same.sum(-1, keepdim=True)

    nan = torch.full_like(X, math.nan)
    check, log = checked(gradient, answering(nan), X, largest)
    check.original = answering(shares)

    assert check([X, largest])[0] is shares
    assert [v.passed for v in log.of(Verified)] == [False]


WRONG = {
    "exchanged outputs": (X + 1, X * 2),
    "one output twice": (X * 2, X * 2),
    "rows in another order": (X.flip(0) * 2, X + 1),
    "a wrong constant": (X * 2.1, X + 1),
    "another shape": (X * 2, X[:4] + 1),
    "another dtype": (X * 2, (X + 1).double()),
    "no tensor": (X * 2, None),
    "NaN in some places": (torch.where(X > 1, math.nan, X * 2), X + 1),
    "NaN in some places beside rounding errors": (
        torch.where(X > 1, math.nan, X * 2 * (1 + 1e-7)),
        X + 1,
    ),
    "nothing but infinities": (X * 2, torch.full_like(X, math.inf)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrongly_wired_graph_is_found_out(name):
    check, log = checked(twice, answering(*WRONG[name]), X)

    first = check([X])
    second = check([X])

    assert [torch.equal(a, b) for a, b in zip(first, twice(X), strict=True)] == [True, True]
    assert [torch.equal(a, b) for a, b in zip(second, twice(X), strict=True)] == [True, True]
    assert [v.passed for v in log.of(Verified)] == [False]
    (event,) = log.of(RolledBack)
    assert event.code is Reason.WRONG
    assert event.reason.startswith("output ")
    assert "of graph 0 differs from the original's by" in event.reason


def test_strict_raises():
    check, _ = checked(twice, answering(*WRONG["exchanged outputs"]), X, strict=True)

    with pytest.raises(VerificationError, match="graph 0: output"):
        check([X])


def test_only_the_first_call_is_checked():
    check, log = checked(twice, answering(X * 2, X + 1), X)

    check([X])
    check.run = answering(X, X)
    again = check([X])

    assert again[0] is X
    assert len(log.of(Verified)) == 1


def test_integers_must_agree():
    count = torch.arange(100)
    check, log = checked(lambda x: (x + 1,), answering(count + 2), count)

    assert torch.equal(check([count])[0], count + 1)
    assert log.of(RolledBack)


def test_a_graph_where_the_original_is_as_far_from_the_truth_passes():
    """x - x.mean() of nearly equal numbers is rounding errors, other ones in another order."""
    x = (random(64, 64) * 1e-7 + 1).bfloat16().float() + random(64, 64) * 1e-6

    def cancelling(x):
        return ((x + 1e4) - 1e4,)

    eager = cancelling(x)[0]
    other = eager + (eager - (x.double())).float() * 0.9

    check, log = checked(cancelling, answering(other), x)

    assert check([x])[0] is other
    assert log.of(Verified)[0].passed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_result_that_only_rounding_makes_passes(dtype):
    """As the gradient of a bias of keys: how it comes out depends on the order of a sum."""

    def centred(x):
        return (x - x.mean(-1, keepdim=True)).sum(-1)

    def in_another_order(args):
        (x,) = args
        return ((x - x.mean(-1, keepdim=True)).flip(-1).cumsum(-1)[:, -1],)

    check, log = checked(centred, in_another_order, random(8, 1000, dtype=dtype))
    check([random(8, 1000, dtype=dtype)])
    assert not log.of(RolledBack)

    check, log = checked(centred, lambda args: (args[0].sum(-1),), random(8, 1000, dtype=dtype))
    check([random(8, 1000, dtype=dtype)])
    assert log.of(RolledBack)


def test_written_inputs_are_compared_and_put_right():
    def counting(x, count):
        count.copy_(count + 1)
        return (x * 2,)

    def wrong(args):
        x, count = args
        args.clear()
        count.add_(5)
        return (x * 2,)

    count = torch.full((4,), 10.0)
    check, log = checked(counting, wrong, X, count)
    check([X, count])

    assert log.of(RolledBack)
    assert count.tolist() == [11.0] * 4

    check([X, count])
    assert count.tolist() == [12.0] * 4


def test_inputs_and_random_state_are_as_after_one_run():
    def noisy(x):
        return (torch.rand_like(x) + x,)

    gm, log = graph_of(noisy, X), Log()
    original = run_original(gm)
    check = FirstCallCheck(run_original(gm), original, gm, 0, log, False)

    torch.manual_seed(3)
    (wanted,) = original([X])
    after = torch.get_rng_state()
    torch.manual_seed(3)
    given = X.clone()
    (result,) = check([given])

    assert torch.equal(result, wanted)
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(given, X)
    assert log.of(Verified)[0].passed


# ------------------------------------------------------------------------------------- as a whole


@pytest.fixture
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))


def two_kernels(x, matrix):
    return torch.exp(x * 0.5) + 1, F.softmax(torch.sin(x @ matrix), -1)


@torch.no_grad()
def test_a_call_that_is_wired_to_the_wrong_tensor_is_found_out(interpreted, monkeypatch):
    """Each kernel is right, but one of them is given another tensor of the same kind."""
    matrix = random(32, 32)
    calls_of = compiler.calls_of

    def crossed(sites, kernels):
        from dataclasses import replace

        calls = calls_of(sites, kernels)
        (x,) = (n for n in sites[0].region.nodes[0].graph.nodes if n.name.startswith("arg0"))
        return [replace(c, inputs=tuple(x for _ in c.inputs)) for c in calls]

    monkeypatch.setattr(compiler, "calls_of", crossed)

    def function(x):
        return two_kernels(x, matrix)

    optimized = fuseopt.optimize(function)

    for _ in range(2):
        for ours, eager in zip(optimized(X), function(X), strict=True):
            torch.testing.assert_close(ours, eager)
    assert [e.passed for e in optimized.log.of(Verified)].count(False) == 1
    assert [e.key for e in optimized.log.of(RolledBack)] == ["graph:0"]


@torch.no_grad()
def test_a_right_graph_is_used_from_the_first_call_on(interpreted):
    matrix = random(32, 32)
    optimized = fuseopt.optimize(lambda x: two_kernels(x, matrix))

    for ours, eager in zip(optimized(X), two_kernels(X, matrix), strict=True):
        torch.testing.assert_close(ours, eager)
    assert len(optimized.log.of(RegionFused)) == 2
    assert not optimized.log.of(RolledBack)
