"""Rewriting dropouts to seeds, on joint graphs, inference graphs and others' graphs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from regions import random, trace
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from fuseopt.graph.dropout import with_dropout_out_of_place
from fuseopt.graph.fold import fold_constants
from fuseopt.graph.seeded_dropout import (
    drop_unused_seeds,
    seed_dropouts,
    with_native_dropout,
)
from fuseopt.graph.share import share_equal_values
from fuseopt.ops.dropout import DRAW_SEEDS, KEEP, threshold


def everywhere(_: torch.device) -> bool:
    return True


def targets(gm) -> list[str]:
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]


def seeded(function, *args, dynamic=False):
    gm = trace(function, *args, dynamic=dynamic)
    count = seed_dropouts(gm, everywhere)
    gm.graph.lint()
    return gm, count


def parts_of(function, *args):
    """The forward and the backward graph of a function, with seeds."""
    found = []

    def partition(joint, *given, **options):
        seed_dropouts(joint, everywhere)
        forward, backward = min_cut_rematerialization_partition(joint, *given, **options)
        drop_unused_seeds(backward)
        found.extend((forward, backward))
        return forward, backward

    def keep_as_it_is(gm, _):
        return make_boxed_func(gm.forward)

    def backend(gm, given):
        return aot_module_simplified(
            gm,
            given,
            fw_compiler=keep_as_it_is,
            bw_compiler=keep_as_it_is,
            partition_fn=partition,
            decompositions={},
        )

    results = torch.compile(function, backend=backend)(*args)
    return found, results


def test_a_dropout_is_a_product_with_what_a_seed_keeps():
    x = random(40, 50)
    gm, count = seeded(lambda x: F.dropout(x, 0.3, True), x)

    torch.manual_seed(5)
    (y,) = gm(x)
    torch.manual_seed(5)
    (seed,) = DRAW_SEEDS(1, x.device)

    assert count == 1
    torch.testing.assert_close(y, x * KEEP(seed, [40, 50], 0.3) / 0.7)


def test_metadata_is_true():
    gm, _ = seeded(lambda x: F.dropout(x.t(), 0.3, True) + 1, random(4, 6))

    for node in gm.graph.nodes:
        if node.op == "call_function":
            assert "val" in node.meta
    assert any(n.meta["val"].stride() == (1, 6) for n in gm.graph.nodes if "mul" in n.name)


def test_dropouts_of_one_call_have_seeds_of_their_own_drawn_together():
    x = random(40, 50)
    gm, count = seeded(lambda x: (F.dropout(x, 0.5, True), F.dropout(x, 0.5, True)), x)

    share_equal_values(gm)
    fold_constants(gm, lambda _: False, lambda _: False)
    one, other = gm(x)

    assert count == 2
    assert targets(gm).count(str(DRAW_SEEDS)) == 1
    assert not torch.equal(one, other)


def test_symbolic_sizes_are_read_from_the_tensor():
    gm, _ = seeded(lambda x: F.dropout(x, 0.5, True), random(4, 6), dynamic=True)

    (y,) = gm(torch.ones(30, 70))

    assert y.shape == (30, 70)
    assert set(y.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.0, True),
        lambda x: F.dropout(x, 0.5, False),
        lambda x: F.dropout2d(x, 0.5, True),
        lambda x: F.alpha_dropout(x, 0.5, True),
        lambda x: F.dropout(x[:0], 0.5, True),
    ],
)
def test_other_dropouts_stay(function):
    gm, count = seeded(function, random(2, 3, 4, 5))

    assert count == 0
    assert str(DRAW_SEEDS) not in targets(gm)


def test_devices_without_kernels_keep_the_dropout_of_pytorch():
    gm = trace(lambda x: F.dropout(x, 0.5, True), random(4, 6))
    before = targets(gm)

    assert seed_dropouts(gm, lambda device: device.type == "cuda") == 0
    assert targets(gm) == before


def test_the_mask_of_a_native_dropout_may_be_used():
    x = random(40, 50)
    gm, _ = seeded(lambda x: torch.native_dropout(x, 0.5, True), x)

    y, mask = gm(x)

    torch.testing.assert_close(y, x * mask * 2)


def test_only_seeds_are_saved():
    x = random(64, 32).requires_grad_()
    (forward, backward), y = parts_of(lambda x: F.dropout(F.gelu(x), 0.3, True) * 2, x)

    saved = [p for p in backward.graph.nodes if p.op == "placeholder"]

    assert targets(forward).count(str(DRAW_SEEDS)) == 1
    assert str(DRAW_SEEDS) not in targets(backward)
    assert sorted(tuple(p.meta["val"].shape) for p in saved) == [(), (64, 32), (64, 32)]
    assert not [p for p in saved if p.meta["val"].dtype == torch.bool]
    (gradient,) = torch.autograd.grad(y.sum(), [x])
    assert torch.equal(gradient != 0, y != 0)


def test_thresholds_are_exact_to_32_bits():
    assert threshold(0.5) == 1 << 31
    assert threshold(1.0) == 1 << 32
    assert abs(threshold(0.1) / (1 << 32) - 0.1) <= 0.5 / (1 << 32)


def test_a_mask_in_pieces_is_the_mask(monkeypatch):
    from fuseopt.ops import dropout

    seed = torch.tensor(9)
    whole = KEEP(seed, [50, 60], 0.4)
    monkeypatch.setattr(dropout, "_CHUNK", 128)

    assert torch.equal(KEEP(seed, [50, 60], 0.4), whole)


def test_the_operators_hold_what_pytorch_asks_of_operators():
    torch.library.opcheck(KEEP, (torch.tensor(9), [5, 6], 0.4))


def test_for_timing_the_dropout_is_that_of_pytorch():
    gm, _ = seeded(lambda x: F.dropout(x.exp(), 0.5, True) + 1, random(40, 50))

    native = with_native_dropout(gm)

    assert targets(native).count("aten.native_dropout.default") == 1
    assert str(KEEP) not in targets(native)
    assert set(((native(torch.zeros(40, 50))[0] - 1).unique()).tolist()) == {0.0, 2.0}
    assert str(KEEP) in targets(gm)


def captured(function, *args):
    """The graph that Dynamo captures."""
    found = []

    def backend(gm, _):
        found.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*args)
    return found[0]


IN_PLACE = {
    "of a result": (lambda x: F.dropout(x * 2, 0.5, True, True) + 1, True),
    "by its own name": (lambda x: torch.dropout_(x * 2, 0.5, True) + 1, True),
    "of a view read by no other name": (lambda x: F.dropout((x * 2).t(), 0.5, True, True), True),
    "of what is read afterwards": (lambda x: F.dropout(y := x * 2, 0.5, True, True) + y, False),
    "of a view": (lambda x: F.dropout((y := x * 2)[0], 0.5, True, True) + y, False),
    "of an input": (lambda x: F.dropout(x, 0.5, True, True) + 1, False),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_dropout_in_place_is_one_elsewhere_where_nobody_sees(name):
    function, moves = IN_PLACE[name]
    gm = captured(function, torch.ones(40, 40))

    made = with_dropout_out_of_place(gm, everywhere)

    assert (made is not gm) == moves
    assert with_dropout_out_of_place(gm, lambda _: False) is gm
    if moves:
        (node,) = (n for n in made.graph.nodes if n.target is F.dropout)
        assert node.args[1:] == (0.5, True)


def test_what_is_not_dense_is_laid_out_as_before():
    gm, count = seeded(lambda x: F.dropout((x * 2)[:, ::2], 0.5, True) + 1, random(8, 12))

    assert count == 1
    assert {n.meta["val"].stride() for n in gm.graph.nodes if "add" in n.name} == {(6, 1)}
