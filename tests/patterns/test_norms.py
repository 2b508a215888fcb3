"""Norms with what comes before and after: residuals, embeddings, activations, groups."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from spellings import CB, CW, HALF, IMAGE, B, W, X, Y, match_of, rules_in, tensor


def test_the_sum_before_a_norm_has_a_name():
    def layer(x, y, w, b):
        h = x + y
        return h, F.layer_norm(h, (16,), w, b)

    match = match_of("residual_norm", layer, X, Y, W, B)

    assert match.node("h").name == "add"
    assert {match.node("x").op, match.node("residual").op} == {"placeholder"}
    assert [n.name for n in match.nodes] == ["add", "layer_norm"]


def test_a_sum_of_three_is_a_residual_too():
    match = match_of(
        "residual_norm", lambda x, y, w: F.rms_norm(x + y + x * y, (16,), w, 1e-6), X, Y, W
    )

    assert {match.node("x").name, match.node("residual").name} == {"add", "mul"}
    assert [n.name for n in match.nodes] == ["add_1", "rms_norm"]


def test_what_others_need_escapes():
    def block(x, y, w):
        h = (x + y).float()
        return h.exp(), F.rms_norm(h, (16,), w.float(), 1e-6).to(x.dtype)

    match = match_of("residual_norm", block, X.to(HALF), Y.to(HALF), W.to(HALF))

    assert [n.name for n in match.escapes] == ["to"]


def test_two_residuals_in_a_row_are_two_matches():
    def twice(x, y, w):
        h = x + y
        h = h + F.rms_norm(h, (16,), w, 1e-6)
        return F.rms_norm(h, (16,), w, 1e-6)

    assert sorted(rules_in(twice, X, Y, W)) == ["residual_norm", "residual_norm"]


def test_embeddings_are_told_from_other_sums():
    ids = torch.zeros(2, 3, dtype=torch.int64)
    table, places, kinds = tensor(10, 16), tensor(3, 16), tensor(2, 16)

    def bert(ids, table, places, kinds, w, b):
        summed = F.embedding(ids, table) + F.embedding(ids * 0, kinds)
        summed = summed + F.embedding(torch.arange(3), places)
        return F.layer_norm(summed, (16,), w, b)

    def gpt2(ids, table, places, w, b):
        return F.layer_norm(F.embedding(ids, table) + places, (16,), w, b)

    assert rules_in(bert, ids, table, places, kinds, W, B) == ["embedding_norm"]
    assert rules_in(gpt2, ids, table, places, W, B) == ["embedding_norm"]


def test_norm_and_activation_are_one():
    def layer_gelu(x, w, b):
        return F.gelu(F.layer_norm(x, (16,), w, b))

    def rms_silu(x, w):
        return F.silu(F.rms_norm(x, (16,), w, 1e-6))

    assert match_of("norm_activation", layer_gelu, X, W, B).pattern == "layer_gelu"
    assert match_of("norm_activation", rms_silu, X, W).pattern == "rms_silu"


def written_group_norm(x, w, b):
    grouped = x.view(2, 4, -1)
    spread = grouped.var(-1, keepdim=True, unbiased=False)
    normal = (grouped - grouped.mean(-1, keepdim=True)) / torch.sqrt(spread + 1e-6)
    return normal.view(2, 8, 3, 4) * w[:, None, None] + b[:, None, None]


def test_groups_are_rows():
    one_operation = match_of("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), IMAGE, CW, CB)
    written = match_of("group_norm", written_group_norm, IMAGE, CW, CB)
    instance = match_of("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), IMAGE, CW, CB)

    assert one_operation.scalars["features"] == 4 * 3 * 4
    assert written.scalars["features"] == 2 * 3 * 4
    assert instance.scalars["features"] == 3 * 4
    assert one_operation.axis is None


def test_group_norm_and_silu_are_one():
    def one_operation(x, w, b):
        return F.silu(F.group_norm(x, 4, w, b))

    def written(x, w, b):
        y = written_group_norm(x, w, b)
        return y * torch.sigmoid(y)

    assert rules_in(one_operation, IMAGE, CW, CB) == ["group_norm_silu"]
    assert rules_in(written, IMAGE, CW, CB) == ["group_norm_silu"]
