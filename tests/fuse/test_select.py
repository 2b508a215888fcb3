"""What fusing saves, and what makes two regions the same kernel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from plans import planned
from regions import node_of, random, trace

from fuseopt.fuse.classify import Role, classify, is_alias, is_widening
from fuseopt.fuse.cost import bytes_alone, bytes_fused, numel, read_bytes, tensor_bytes
from fuseopt.sites import distinct

X = random(64, 256)
BYTES = X.numel() * X.itemsize


def test_a_chain_saves_what_lies_between():
    site = planned(lambda x, y: torch.tanh(x * 2) + y, X, random(64, 256, seed=1)).only

    assert site.chosen.launches == 3
    assert site.chosen.bytes_before == (2 + 2 + 3) * BYTES
    assert site.chosen.bytes_after == (2 + 1) * BYTES


def test_both_outputs_are_written():
    def function(x, y, w):
        h = x + y
        return h, F.rms_norm(h, (256,), w)

    site = planned(function, X, random(64, 256, seed=1), random(256)).only

    assert site.chosen.bytes_before == (3 + 2) * BYTES + 1024
    assert site.chosen.bytes_after == (2 + 2) * BYTES + 1024


def test_an_alias_is_no_kernel():
    gm = trace(lambda x: torch.exp(x) + F.dropout(x, 0.1, False), X)

    assert is_alias(node_of(gm, "dropout"))
    assert not is_alias(node_of(gm, "exp"))


def test_a_copy_to_another_layout_is_no_alias():
    gm = trace(lambda x: x.t().contiguous() * 2, X)

    assert not is_alias(node_of(gm, "contiguous"))


def test_dropout_in_training_is_no_alias():
    gm = trace(lambda x: F.dropout(x, 0.1, True) * 2, X)

    assert not is_alias(node_of(gm, "dropout"))


@pytest.mark.parametrize(
    ("source", "target", "widens"),
    [
        (torch.bfloat16, torch.float32, True),
        (torch.float16, torch.float64, True),
        (torch.float32, torch.bfloat16, False),
        (torch.float16, torch.bfloat16, False),
        (torch.int8, torch.float32, False),
        (torch.int8, torch.int32, False),
    ],
)
def test_only_conversions_to_wider_floats_widen(source, target, widens):
    gm = trace(lambda x: x.to(target) * 2, random(4, 4, dtype=source))

    assert is_widening(node_of(gm, "to")) is widens


def test_an_expanded_dimension_is_read_once():
    assert tensor_bytes(random(1, 256).expand(64, 256)) == 1024
    assert tensor_bytes(X.t()) == BYTES


def test_of_a_table_no_more_is_read_than_taken():
    ids = torch.zeros(8, dtype=torch.int64)
    gm = trace(lambda t, i: F.embedding(i, t) * 2, random(30000, 16), ids)
    table, _ = gm.graph.find_nodes(op="placeholder")
    taken = node_of(gm, "embedding")

    assert read_bytes(table, [taken]) == 8 * 16 * 4
    assert numel(table) == 30000 * 16
    nodes = [taken, node_of(gm, "mul")]
    assert bytes_fused(nodes, taken.all_input_nodes, nodes[1:]) == 64 + 2 * 8 * 16 * 4
    assert bytes_alone(nodes) == 64 + 4 * 8 * 16 * 4


def test_roles():
    gm = trace(lambda x, m: (x @ m).view(8, -1).relu() + torch.ones(()), X, random(256, 256))

    roles = {n.name: v.role for n, v in classify(gm.graph, torch.device("cpu")).items()}

    assert roles["matmul"] is Role.OPAQUE
    assert roles["view"] is roles["ones"] is Role.FREE
    assert roles["relu"] is roles["add"] is Role.FUSABLE


def test_tensors_elsewhere_are_left_alone():
    gm = trace(lambda x: torch.exp(x) * 2, X)

    verdicts = classify(gm.graph, torch.device("cuda"))

    assert verdicts[node_of(gm, "exp")].code == "device"


# ------------------------------------------------------------------------------- structural keys


def layers(count: int):
    def function(x, residual, weights, matrices):
        for weight, matrix in zip(weights, matrices, strict=True):
            residual = x + residual
            x = F.rms_norm(residual, (64,), weight) @ matrix
        return x, residual

    weights = [random(64, seed=n) for n in range(count)]
    matrices = [random(64, 64, seed=n) for n in range(count)]
    flat = (random(8, 64), random(8, 64, seed=1), *weights, *matrices)
    return lambda x, r, *rest: function(x, r, rest[:count], rest[count:]), flat


def test_equal_layers_share_one_kernel(monkeypatch):
    from fuseopt.lower import region

    lowered = []
    lower = region.lower
    monkeypatch.setattr(region, "lower", lambda *a, **k: lowered.append(1) or lower(*a, **k))
    function, args = layers(24)

    found = planned(function, *args)

    assert len(found.sites) == 24
    assert len(distinct(found.sites)) == 1
    assert len({id(s.region.kernel) for s in found.sites}) == 1
    assert len(lowered) < 12


def key(function, *args, **options) -> str:
    return planned(function, *args, **options).only.region.key


def scaled(factor):
    return lambda x, y: torch.tanh(x * factor) + y


Y = random(64, 256, seed=1)


@pytest.mark.parametrize(
    "other",
    [
        (scaled(2.0), random(64, 128), random(64, 128, seed=1)),
        (scaled(2.0), X.bfloat16(), Y.bfloat16()),
        (scaled(2.0), random(256, 64).t(), Y),
        (scaled(2.5), X, Y),
        (scaled(-0.0), X, Y),
        (lambda x, y: torch.tanh(x * 2.0) + x, X, Y),
        (lambda x, y: torch.tanh(x * 2.0) - y, X, Y),
        (lambda x, y: (torch.tanh(x * 2.0) + y, x * 2.0), X, Y),
    ],
)
def test_what_is_computed_otherwise_has_another_key(other):
    assert key(*other) != key(scaled(2.0), X, Y)
    assert key(scaled(0.0), X, Y) != key(scaled(-0.0), X, Y)


def test_where_tensors_come_from_does_not_matter_to_the_key():
    once = key(lambda x, y: torch.tanh(x * 2.0) + y, X, Y)

    assert once == key(lambda y, x: torch.tanh(x * 2.0) + y, Y, X)
    assert once == key(lambda x, m: torch.tanh((x @ m) * 2.0) + x, X, random(256, 256))


def test_numerics_are_part_of_the_key():
    half = X.bfloat16(), Y.bfloat16()

    assert key(scaled(2.0), *half) != key(scaled(2.0), *half, numerics="eager")


def test_sizes_with_other_names_give_the_same_key():
    def function(x, y):
        return torch.tanh(x * 2.0) + y

    def first_something_else(z, x, y):
        return z @ z, torch.tanh(x * 2.0) + y

    small = random(6, 4), random(6, 4, seed=1)
    other = planned(first_something_else, random(5, 5), *small, dynamic=True)

    assert other.only.region.key == key(function, *small, dynamic=True)
