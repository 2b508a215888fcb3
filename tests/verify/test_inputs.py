"""Inputs that kernels are checked on: indices that a kernel computes stay inside their tables."""

from __future__ import annotations

import pytest
import torch
from regions import case

import fuseopt
from fuseopt.errors import KernelError
from fuseopt.events import FellBack, RegionFused, RolledBack
from fuseopt.runtime.samples import draw_inputs
from fuseopt.verify.inputs import input_sets

TABLE = torch.randn(10, 8)
PLACES = torch.arange(6)
X = torch.randn(4, 8)


def drawn(function, *args):
    kernel = case(function, *args).kernel
    return draw_inputs(kernel, torch.device("cpu"), {}, torch.Generator().manual_seed(0))


COMPUTED = {
    "shifted up": lambda t, p: torch.embedding(t, p + 3) * 2,
    "shifted down": lambda t, p: torch.embedding(t, (p + 1) - 1) * 2,
    "times itself": lambda t, p: torch.embedding(t, p * p // 8 + 1) * 2,
    "reversed": lambda t, p: torch.embedding(t, 9 - p) * 2,
    "clamped": lambda t, p: torch.embedding(t, (p * 7).clamp(max=9)) * 2,
    "counted from the end": lambda t, p: t[p - 5] * 2,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_indices_computed_in_a_kernel_are_drawn_inside_the_table(name):
    function = COMPUTED[name]

    inputs = drawn(function, TABLE, PLACES)

    table, places = inputs if inputs[0].is_floating_point() else reversed(inputs)
    assert function(table, places).shape == (6, 8)


def test_indices_that_never_are_inside():
    made = case(lambda t, p: torch.embedding(t, p + p - 50) * 2, TABLE, PLACES[:4] + 25)

    with pytest.raises(KernelError, match="stays inside"):
        draw_inputs(made.kernel, torch.device("cpu"), {}, torch.Generator())


def test_positions_counted_from_a_mask(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))

    def function(table, mask):
        places = torch.cumsum(mask, 1) * mask - 1
        return torch.embedding(table, places + 2) * 2

    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    optimized = fuseopt.optimize(function)

    torch.testing.assert_close(optimized(TABLE, mask), function(TABLE, mask))
    assert optimized.log.of(RegionFused)
    assert not optimized.log.of(RolledBack)
    assert not optimized.log.of(FellBack)


def test_what_is_empty_is_left_out_of_a_concatenation(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))

    def function(x, y):
        return torch.cat((x[:, :0], torch.exp(x), y, x[:, 8:]), 1) * 2

    optimized = fuseopt.optimize(function)
    args = torch.randn(4, 8), torch.randn(4, 0)

    torch.testing.assert_close(optimized(*args), function(*args))
    (region,) = optimized.report.regions
    assert [n.op for n in region.nodes] == [
        "aten.exp.default",
        "aten.cat.default",
        "aten.mul.Tensor",
    ]


def test_indices_that_depend_on_no_input_are_inside():
    """Positions of a sequence, counted in the kernel."""

    def positions(table):
        return torch.embedding(table, torch.arange(9).abs()) * 2

    (table,) = drawn(positions, TABLE)
    assert table.shape == TABLE.shape


@pytest.mark.parametrize("places", [[0, 0, 0], [0]], ids=str)
def test_an_index_into_a_table_of_one_row_is_zero(places):
    """The kernel does not read it; the operations that it replaces do."""
    inputs = drawn(lambda t, p: torch.tanh(t)[p] + 1, TABLE[:1], torch.tensor(places))

    assert not next(t for t in inputs if t.dtype == torch.int64).any()


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a // b + 1,
        lambda a, b: a % (b * 2) + 1,
        lambda a, b: torch.fmod(a, b) * 2,
        lambda a, b: torch.div(a, b, rounding_mode="trunc") + 1,
    ],
)
def test_divisors_are_not_zero(function):
    a, b = torch.randint(1, 9, (4, 80)), torch.randint(1, 5, (4, 80))

    inputs = drawn(function, a, b)

    assert sorted(bool((t == 0).any()) for t in inputs) == [False, True]


def test_a_chain_whose_operations_refuse_what_is_drawn_is_rolled_back(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))
    function = lambda a, b: (a // (b - 5) + 1, torch.tanh(a * 0.5) * 2)  # noqa: E731
    a, b = torch.randint(1, 9, (4, 8)), torch.randint(1, 5, (4, 8))
    optimized = fuseopt.optimize(function)

    for ours, theirs in zip(optimized(a, b), function(a, b), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not optimized.log.of(FellBack)
    (rolled,) = optimized.log.of(RolledBack)
    assert "ZeroDivisionError" in rolled.reason


def test_equal_numbers_are_drawn_where_a_kernel_asks_for_them():
    kernel = case(lambda x, m: (x == m).float() * 2, torch.randn(8, 80), torch.randn(8, 1)).kernel

    sets = dict(input_sets(kernel, torch.device("cpu"), {}))

    x, m = sorted(sets["ties"], key=torch.Tensor.numel, reverse=True)
    assert (x == m).any(-1).all()
    assert "ties" not in dict(input_sets(case(torch.exp, X).kernel, torch.device("cpu"), {}))
