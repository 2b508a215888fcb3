"""Rotary embedding is found in its forms, and only where the pairs are turned together."""

from __future__ import annotations

import pytest
import torch
from spellings import HALF, match_of, rules_in, tensor

Q = tensor(2, 4, 5, 16)
FULL = tensor(5, 16)
TABLE = tensor(5, 8)


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def halves(q, c, s):
    first, second = q.chunk(2, -1)
    return torch.cat([first * c - second * s, first * s + second * c], -1)


def pairs(q, c, s):
    q = q.reshape(2, 4, 5, 8, 2)
    first, second = q[..., 0], q[..., 1]
    return torch.stack([first * c - second * s, first * s + second * c], -1).flatten(-2)


def stacked_halves(q, c, s):
    parts = q.view(2, 4, 5, 2, 8)
    turned = torch.stack([-parts[..., 1, :], parts[..., 0, :]], -2).flatten(-2)
    return q * c + turned * s


SPELLINGS = {
    "rotate_half": (lambda q, c, s: q * c + rotate_half(q) * s, FULL),
    "rotate_half, sine first": (lambda q, c, s: rotate_half(q) * s + c[None, None] * q, FULL),
    "rotate_half, chunks": (
        lambda q, c, s: q * c + torch.cat((-q.chunk(2, -1)[1], q.chunk(2, -1)[0]), -1) * s,
        FULL,
    ),
    "rotate_half, doubled tables": (
        lambda q, c, s: q * torch.cat([c, c], -1) + rotate_half(q) * torch.cat([s, s], -1),
        TABLE,
    ),
    "rotate_half, stacked": (stacked_halves, FULL),
    "half_tables": (halves, TABLE),
    "half_tables, slices": (
        lambda q, c, s: torch.cat(
            [q[..., :8] * c - q[..., 8:] * s, q[..., 8:] * c + q[..., :8] * s], -1
        ),
        TABLE,
    ),
    "interleaved": (
        lambda q, c, s: q * c + torch.stack([-q[..., 1::2], q[..., ::2]], -1).flatten(-2) * s,
        FULL,
    ),
    "interleaved_half_tables": (
        lambda q, c, s: torch.stack(
            [q[..., ::2] * c - q[..., 1::2] * s, q[..., 1::2] * c + q[..., ::2] * s], -1
        ).flatten(-2),
        TABLE,
    ),
    "interleaved_half_tables, pairs": (pairs, TABLE),
}


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(("name", "case"), SPELLINGS.items(), ids=SPELLINGS)
def test_spellings_are_found(name, case, dtype):
    function, table = case

    match = match_of("rope", function, Q.to(dtype), table, table)

    assert match.pattern == name.split(",")[0]


def test_heads_are_taken_from_a_projection():
    def heads(q, c, s):
        q = q.view(2, 5, 4, 16).transpose(1, 2)
        return q * c + rotate_half(q) * s

    assert match_of("rope", heads, tensor(2, 5, 64), FULL, FULL).axis == 3


def test_part_of_the_features_may_stay():
    def partial(q, c, s):
        turned, kept = q[..., :8], q[..., 8:]
        return torch.cat([turned * c + rotate_half(turned) * s, kept], -1)

    match = match_of("rope", partial, Q, TABLE, TABLE)

    assert match.pattern == "partial"
    assert match.scalars["rotary"] * 2 == 8


NEAR_MISSES = {
    "rolled without a sign": lambda q, c, s: q * c + torch.roll(q, 8, -1) * s,
    "the sign on the other half": lambda q, c, s: (
        q * c + torch.cat([q[..., 8:], -q[..., :8]], -1) * s
    ),
    "cut elsewhere": lambda q, c, s: q * c + torch.cat([-q[..., 4:], q[..., :4]], -1) * s,
    "another value turned": lambda q, c, s: q * c + rotate_half(q * q) * s,
    "half as neighbours": lambda q, c, s: (
        q * c + torch.stack([-q[..., 8:], q[..., :8]], -1).flatten(-2) * s
    ),
}


@pytest.mark.parametrize("function", NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses_are_refused(function):
    assert "rope" not in rules_in(function, Q, FULL, FULL)


def test_neighbours_are_not_halves():
    interleaved, half = SPELLINGS["interleaved"][0], SPELLINGS["rotate_half"][0]

    assert match_of("rope", interleaved, Q, FULL, FULL).pattern == "interleaved"
    assert match_of("rope", half, Q, FULL, FULL).pattern == "rotate_half"
