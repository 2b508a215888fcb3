"""A norm and the activation of its result."""

from __future__ import annotations

import torch.nn.functional as F

from fuseopt.rule import Row, Rule, register


def layer_gelu(x, weight: Row, bias: Row, eps: float):
    """Layer norm, then GELU."""
    return F.gelu(F.layer_norm(x, x.shape[-1:], weight, bias, eps))


def layer_relu(x, weight: Row, bias: Row, eps: float):
    """Layer norm, then ReLU."""
    return F.relu(F.layer_norm(x, x.shape[-1:], weight, bias, eps))


def layer_silu(x, weight: Row, bias: Row, eps: float):
    """Layer norm, then SiLU."""
    return F.silu(F.layer_norm(x, x.shape[-1:], weight, bias, eps))


def rms_silu(x, weight: Row, eps: float):
    """RMS norm, then SiLU."""
    return F.silu(F.rms_norm(x, x.shape[-1:], weight, eps))


@register
class NormActivation(Rule):
    """A norm and the activation of its result."""

    anchor = "norm"
    patterns = (layer_gelu, layer_relu, layer_silu, rms_silu)
