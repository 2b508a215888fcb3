"""Attention scores to weights: scaled, masked, softmax."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fuseopt.rule import Mask, Rule, register


def scaled_and_added(x, mask, scale: float):
    """A mask (or a position bias) is added."""
    return F.softmax(x * scale + mask, -1)


def added(x, mask):
    """A mask is added to scores that were scaled before."""
    return F.softmax(x + mask, -1)


def scaled(x, scale: float):
    """Without a mask."""
    return F.softmax(x * scale, -1)


def scaled_and_filled(x, mask: Mask, scale: float, value: float):
    """Scores under a bool mask are replaced."""
    return F.softmax((x * scale).masked_fill(mask, value), -1)


def filled(x, mask: Mask, value: float):
    """Scores under a bool mask are replaced."""
    return F.softmax(x.masked_fill(mask, value), -1)


def capped_and_added(x, mask, cap: float):
    """Scores are kept below a cap by tanh before the mask is added (Gemma 2)."""
    return F.softmax(torch.tanh(x / cap) * cap + mask, -1)


def capped(x, cap: float):
    """Scores are kept below a cap by tanh."""
    return F.softmax(torch.tanh(x / cap) * cap, -1)


@register
class MaskedSoftmax(Rule):
    """Softmax with what is done to its argument."""

    anchor = "softmax"
    patterns = (
        scaled_and_added,
        capped_and_added,
        scaled_and_filled,
        added,
        filled,
        capped,
        scaled,
    )
