"""Updates of inputs go in place where nothing reads the old value afterwards, and only there."""

from __future__ import annotations

import pytest
import torch

from fuseopt.graph.normalise import normalise
from fuseopt.graph.reinplace import reinplace

X = torch.arange(8.0)


def updated(function, *args, expect: int):
    """Run a function normalised and reinplaced; check it against eager; return its operations."""
    torch._dynamo.reset()
    ops: list[str] = []

    def compile_graph(graph):
        assert reinplace(graph.gm) == expect
        graph.gm.graph.lint()
        calls = [n for n in graph.gm.graph.nodes if n.op == "call_function"]
        assert all("val" in n.meta for n in calls)
        ops.extend(str(n.target).removeprefix("aten.") for n in calls)
        return lambda values: graph.gm.forward(*values)

    def backend(gm, examples):
        return normalise(gm, examples, compile_graph, lambda: 0)

    given, eager = [a.clone() for a in args], [a.clone() for a in args]
    with torch.no_grad():
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        got, want = compiled(*given), function(*eager)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(given, eager)
    return ops


def test_a_cache_row_is_written_in_place():
    def step(cache, row, at):
        cache.index_copy_(0, at, row)
        return cache.sum()

    ops = updated(step, torch.zeros(4, 8), X[None], torch.tensor([2]), expect=1)
    assert ops == ["index_copy_.default", "sum.default"]


def test_a_slice_assignment_writes_its_slice_only():
    def step(cache, row):
        cache[1:2] = row
        return cache * 2

    ops = updated(step, torch.zeros(4, 8), X[None], expect=1)
    assert ops == ["slice.Tensor", "copy_.default", "mul.Tensor"]


def test_an_indexed_row_takes_a_cast_and_broadcast_value():
    def step(cache, value):
        cache[2] = value
        return cache.sum()

    ops = updated(step, torch.zeros(4, 8), torch.tensor([3]), expect=1)
    assert ops[-3:] == ["select.int", "copy_.default", "sum.default"]
    assert "copy.default" not in ops


def test_updates_after_one_another_all_go_in_place():
    def step(cache, row):
        cache[0] = row
        cache.mul_(2)
        cache[1:3] = row
        return cache.sum()

    ops = updated(step, torch.ones(4, 8), X, expect=1)
    assert ops.count("copy_.default") == 2
    assert "mul_.Tensor" in ops


def test_several_inputs_are_each_written_in_place():
    def step(keys, values, row, at):
        keys.index_copy_(0, at, row)
        values[at] = row * 2
        return keys @ values.t()

    ops = updated(step, torch.zeros(4, 8), torch.ones(4, 8), X[None], torch.tensor([1]), expect=2)
    assert {"index_copy_.default", "index_put_.default"} <= set(ops)
    assert "copy_.default" not in ops


@pytest.mark.parametrize("view", [lambda c: c, lambda c: c[1:], lambda c: c.t()])
def test_an_old_value_read_later_keeps_the_copy(view):
    def step(cache, row):
        old = view(cache) * 1 if view(cache) is cache else view(cache).clone()
        new = cache.index_fill(0, torch.tensor([0]), 5.0)
        late = view(cache).sum()
        cache.copy_(new)
        return old, late + row

    ops = updated(step, torch.ones(4, 8), X, expect=0)
    assert ops[-1] == "copy_.default"


def test_a_value_taken_from_the_input_itself_is_read_before_it_is_overwritten():
    def move(cache):
        cache[:2] = cache[2:]
        return cache.sum()

    ops = updated(move, torch.rand(4, 8), expect=1)
    assert ops.index("copy.default") < ops.index("copy_.default")


def test_an_update_of_another_dtype_keeps_the_copy():
    def step(count, weight):
        count.copy_(count + weight)
        return weight * 2

    updated(step, torch.ones(3, dtype=torch.float16), torch.ones(3), expect=0)


def test_an_update_that_is_not_made_from_the_input_stays_a_copy():
    def store(buffer, x):
        buffer.copy_(x * 2)
        return x + 1

    assert updated(store, torch.zeros(8), X, expect=0)[-1] == "copy_.default"


def test_an_update_that_is_laid_out_otherwise_keeps_the_copy():
    def step(x):
        x.masked_fill_(x > 0.5, -1.0)
        return x * 2 + 1

    updated(step, torch.rand(9, 4).t(), expect=0)
