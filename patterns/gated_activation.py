"""One value through an activation function, times another: the gates of feed-forward layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fuseopt.rule import Rule, register


def silu(x, gate):
    """SwiGLU."""
    return F.silu(x) * gate


def gelu(x, gate):
    """GEGLU."""
    return F.gelu(x) * gate


def gelu_tanh(x, gate):
    """GEGLU by a tanh, as in Gemma and T5."""
    return F.gelu(x, approximate="tanh") * gate


def quick_gelu(x, gate):
    """GEGLU by a sigmoid."""
    return x * torch.sigmoid(1.702 * x) * gate


def relu(x, gate):
    """ReGLU."""
    return F.relu(x) * gate


def sigmoid(x, gate):
    """GLU."""
    return torch.sigmoid(x) * gate


@register
class GatedActivation(Rule):
    """A gated linear unit (Shazeer 2020), without its matrix products."""

    anchor = "activation"
    patterns = (silu, gelu_tanh, gelu, quick_gelu, relu, sigmoid)
