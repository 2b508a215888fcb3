"""Rotary position embedding: pairs of features turned by an angle that depends on the position.

Pairs are one half of the features apart (as in GPT-NeoX) or neighbours (as in GPT-J); the rest may
stay as they are (partial). Tables may hold each angle twice, or once.
"""

from __future__ import annotations

import torch

from fuseopt.rule import Rule, register


def rotate_half(x, cos, sin):
    """Pairs half the features apart, tables of full width."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def half_tables(x, cos, sin):
    """Pairs half the features apart, tables of half width."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = cos[..., :half], sin[..., :half]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def partial(x, cos, sin, rotary: int):
    """Only the first features are turned."""
    turned, kept = x[..., :rotary], x[..., rotary:]
    first, second = turned.chunk(2, -1)
    cos, sin = cos[..., :rotary], sin[..., :rotary]
    return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, kept], -1)


def interleaved(x, cos, sin):
    """Pairs of neighbours, tables of full width."""
    first, second = x[..., ::2], x[..., 1::2]
    return x * cos + torch.stack([-second, first], -1).flatten(-2) * sin


def interleaved_half_tables(x, cos, sin):
    """Pairs of neighbours, tables of half width."""
    half = x.shape[-1] // 2
    first, second = x[..., ::2], x[..., 1::2]
    cos, sin = cos[..., :half], sin[..., :half]
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.flatten(-2)


@register
class Rope(Rule):
    """Rotary position embedding (Su et al. 2021)."""

    anchor = "rope"
    patterns = (rotate_half, half_tables, partial, interleaved, interleaved_half_tables)
