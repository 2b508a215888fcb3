"""Residual add and the normalization of its sum, in one pass over the row."""

from __future__ import annotations

import torch.nn.functional as F

from fuseopt.rule import Row, Rule, register


def layer(x, residual, weight: Row, bias: Row | None, eps: float):
    """Followed by a layer norm."""
    h = x + residual
    return F.layer_norm(h, h.shape[-1:], weight, bias, eps), h


def layer_plain(x, residual, eps: float):
    """Followed by a layer norm without weight and bias."""
    h = x + residual
    return F.layer_norm(h, h.shape[-1:], None, None, eps), h


def rms(x, residual, weight: Row | None, eps: float):
    """Followed by an RMS norm."""
    h = x + residual
    return F.rms_norm(h, h.shape[-1:], weight, eps), h


@register
class ResidualNorm(Rule):
    """The sum of two values and its norm; `h` names the sum, which often goes on as residual."""

    anchor = "norm"
    patterns = (layer, rms, layer_plain)
