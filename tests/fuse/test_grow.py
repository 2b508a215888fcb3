"""Which operations become one kernel, which do not, and why."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from plans import planned
from regions import random

import fuseopt
from fuseopt.events import FellBack, Reason
from fuseopt.fuse.grow import MOST_NODES, MOST_TENSORS
from fuseopt.graph.splice import Call, splice

ROWS, WIDTH = 64, 256
X, Y = random(ROWS, WIDTH), random(ROWS, WIDTH, seed=1)
B = random(WIDTH)
M = random(WIDTH, WIDTH)
HALF = X.bfloat16()


def residual_norm(x, residual, weight, matrix):
    h = x + residual
    return h, F.rms_norm(h, (WIDTH,), weight) @ matrix


def gated(x, matrix):
    up = x @ matrix
    gate = x @ matrix.t()
    return (F.silu(gate) * up) @ matrix


def reused(x):
    h = torch.exp(x) + 1
    return torch.tanh(h) * h, h.sigmoid()


def doubled_sum(x):
    h = x * 2 + 1
    return h, h.sum()


# name: function, arguments, the ops of each kernel
FUSED = {
    "a chain": (lambda x, y: torch.tanh(x * 2) + y, [X, Y], [["mul", "tanh", "add"]]),
    "both outputs of residual and norm": (residual_norm, [X, Y, B, M], [["add", "rms_norm"]]),
    "a gate between products": (gated, [X, M], [["silu", "mul"]]),
    "a value used three times": (reused, [X], [["exp", "add", "tanh", "mul", "sigmoid"]]),
    "siblings that read one tensor": (
        lambda x: (torch.exp(x) + 1, torch.tanh(x) * 2),
        [X],
        [["exp", "add", "tanh", "mul"]],
    ),
    "sibling reductions": (lambda x: (x.sum(-1), x.amax(-1)), [X], [["sum", "amax"]]),
    "elements before and after a reduction": (
        lambda x, y: torch.relu(F.softmax(x + y, 0) * 2),
        [X, Y],
        [["add", "softmax", "mul", "relu"]],
    ),
    "elements and the sum of all of them": (doubled_sum, [X], [["mul", "add", "sum"]]),
    "a broadcast producer": (
        lambda x, b: x * (torch.exp(b) + 1),
        [X, B],
        [["exp", "add", "mul"]],
    ),
    "through views": (
        lambda x: torch.relu((x * 2).view(8, 8, WIDTH).transpose(0, 1)) + 1,
        [X],
        [["mul", "relu", "add"]],
    ),
    "pieces of a concatenation": (
        lambda x, y: torch.cat((x * 2, y + 1), -1).relu(),
        [X, Y],
        [["mul", "add", "cat", "relu"]],
    ),
    "a slow operation alone": (lambda x: F.layer_norm(x, (WIDTH,)), [X], [["layer_norm"]]),
    "conversions": (
        lambda x: (x.float() * 2).to(torch.bfloat16),
        [HALF],
        [["to", "mul", "to"]],
    ),
    "a mask made of positions": (
        lambda x: F.softmax(
            x.masked_fill(torch.arange(WIDTH) > torch.arange(ROWS)[:, None], -torch.inf), -1
        ),
        [X],
        [["masked_fill", "softmax"]],
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_becomes_one_kernel(name):
    function, args, kernels = FUSED[name]

    found = planned(function, *args).fused

    # Comparisons of positions are constants that a kernel computes; they may be listed or not.
    assert [[op for op in ops if op != "gt"] for ops in found] == kernels


def feeds_a_product_and_itself(x, matrix):
    h = torch.exp(x) + 1
    return h * 2 + h @ matrix


def broadcast_and_kept(x, b):
    c = torch.exp(b) + 1
    return x * c, c


def rows_and_columns(x):
    return x.mean(-1, keepdim=True) + x.mean(0, keepdim=True)


# name: function, arguments, the ops of each kernel, what stays, and why
APART = {
    "a value between depends on the first": (
        feeds_a_product_and_itself,
        [X, M],
        [["exp", "add"], ["mul", "add"]],
        "matmul",
        Reason.HEAVY,
    ),
    "reductions along different axes": (
        lambda x: F.softmax(F.softmax(x, -1), 0),
        [X],
        [["softmax"], ["softmax"]],
        None,
        None,
    ),
    "a broadcast value that others use": (
        broadcast_and_kept,
        [X, B],
        [["exp", "add"]],
        "mul",
        Reason.NO_GAIN,
    ),
    "a single operation": (lambda x: x * 2, [X], [], "mul", Reason.SINGLE),
    "an op without a definition": (
        lambda x: torch.exp(x.cumsum(-1) * 2) + 1,
        [X],
        [["mul", "exp", "add"]],
        "cumsum",
        Reason.NO_DEFINITION,
    ),
    "complex numbers": (
        lambda x: torch.view_as_complex(x.view(ROWS, -1, 2)).abs() * 2,
        [X],
        [],
        "abs",
        Reason.DTYPE,
    ),
    "random numbers": (
        lambda x: F.dropout(torch.exp(x) * 2, 0.5, True) + 1,
        [X],
        [["exp", "mul"]],
        "dropout",
        Reason.RANDOM,
    ),
    "nothing but views": (lambda x: x.t().reshape(ROWS, WIDTH), [X], [], None, None),
}


@pytest.mark.parametrize("name", APART)
def test_what_stays_apart_and_why(name):
    function, args, kernels, op, code = APART[name]

    found = planned(function, *args)

    assert found.fused == kernels
    if op is not None:
        assert found.code(op) is code


def test_the_reason_names_the_neighbour():
    found = planned(rows_and_columns, X)

    assert found.fused == [["mean", "add"]]
    assert found.code("mean") is Reason.AXES
    assert "two reductions run over different axes" in found.left("mean").reason


def test_a_value_on_its_way_round_the_second_group_is_not_fused_across():
    """exp -> matmul -> add and exp -> mul -> add: one kernel would need its own result."""
    found = planned(lambda x, m: (torch.exp(x) * 2) + torch.relu(torch.exp(x) @ m), X, M)

    for site in found.sites:
        before = {n for i in site.region.inputs for n in ancestors(i)}
        assert not before & set(site.region.nodes)


def test_a_way_round_by_a_kernel_that_reaches_further_down_the_graph_is_seen():
    def function(x, y):
        early = x * 2
        below = (early @ early).relu() + y
        above = y * 3
        return below, (above @ above).sigmoid() * early

    matrix = random(8, 8)
    found = planned(function, matrix, matrix)
    # above -> mm -> {early, sigmoid} -> mm -> below: one kernel of the last and the first would
    # wait for itself.
    assert ["mul", "sigmoid", "mul"] in found.fused
    calls = [
        Call(len, "call", s.region.inputs, s.region.nodes, s.region.outputs) for s in found.sites
    ]
    assert splice(found.graph.gm, calls)


def ancestors(node):
    seen, stack = set(), [node]
    while stack:
        for source in stack.pop().all_input_nodes:
            if source not in seen:
                seen.add(source)
                stack.append(source)
    return seen


def chain(length: int):
    def function(x):
        for _ in range(length):
            x = torch.sin(x)
        return x

    return function


def test_a_way_round_by_the_order_of_random_numbers_is_seen(monkeypatch, tmp_path):
    """The first draw reads one of two siblings, the second, which waits for it, feeds the other."""
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))

    def drawn(x):
        return torch.bernoulli(torch.sigmoid(x * 2)), torch.tanh(torch.rand_like(x) + x)

    optimized = fuseopt.optimize(drawn, strict=True)
    x = random(4, 8)
    torch.manual_seed(0)
    found = optimized(x)
    torch.manual_seed(0)

    torch.testing.assert_close(found, drawn(x))
    assert [len(r.nodes) for r in optimized.report.regions] == [2, 2]
    assert not optimized.log.of(FellBack)


def test_a_kernel_has_at_most_so_many_operations():
    assert planned(chain(MOST_NODES), X).fused == [["sin"] * MOST_NODES]

    found = planned(chain(MOST_NODES + 10), X).fused

    assert len(found) == 2
    assert all(len(ops) <= MOST_NODES for ops in found)
    assert sum(map(len, found)) == MOST_NODES + 10


def test_a_kernel_has_at_most_so_many_tensors():
    found = planned(lambda *a: sum(a[1:], a[0]) * 2, *(random(8, 8, seed=n) for n in range(60)))

    assert len(found.sites) == 2
    assert all(len(s.region.inputs) + 1 <= MOST_TENSORS for s in found.sites)


# ------------------------------------------------------------------------- widening conversions


def test_a_conversion_that_others_use_too_is_read_through_and_written_once():
    """The matrix product reads the wide values from memory, the kernels convert on their way."""

    def function(x, matrix):
        wide = x.float()
        return wide @ matrix, torch.exp(wide) * 2 + 1

    found = planned(function, HALF, M)

    assert found.fused == [["to", "exp", "mul", "add"]]
    (x,) = found.graph.gm.graph.find_nodes(op="placeholder")[:1]
    assert found.only.region.inputs == (x,)
    assert {n.name for n in found.only.region.outputs} == {"to", "add"}


def test_a_conversion_that_only_kernels_use_is_never_written():
    found = planned(lambda x: (torch.exp(x.float()) * 2, torch.tanh(x.float()) + 1), HALF)

    assert all(not n.name.startswith("to") for s in found.sites for n in s.region.outputs)


def test_a_conversion_before_two_products_is_no_kernel_of_its_own():
    def function(x, matrix):
        wide = x.float()
        return wide @ matrix, wide @ matrix.t()

    found = planned(function, HALF, M)

    assert found.sites == ()


@pytest.mark.parametrize("name", ["Gemma2", "Llama", "Qwen3"])
def test_training_graphs_of_models_have_no_circle_of_kernels(name):
    """Norms of 16-bit sums: conversions to float32 stand between groups in every direction."""
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config = getattr(transformers, f"{name}Config")(**small, **heads)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16).eval()

    optimized = fuseopt.optimize(model)
    optimized(input_ids=torch.arange(40).view(2, 20), use_cache=False)

    assert {e.code for e in optimized.log.of(FellBack)} == {Reason.NO_DEVICE}
    assert optimized.report.totals.launches_after * 2 < optimized.report.totals.launches_before
