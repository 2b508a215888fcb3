"""Activation functions written out or as one operation."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fuseopt.rule import Rule, register


def silu(x):
    """x * sigmoid(x)."""
    return F.silu(x)


def gelu(x):
    """x times the normal distribution function."""
    return F.gelu(x)


def gelu_tanh(x):
    """GELU by a tanh, as in GPT-2."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x):
    """GELU by a sigmoid, as in CLIP."""
    return x * torch.sigmoid(1.702 * x)


def relu(x):
    """The positive part."""
    return F.relu(x)


def relu_squared(x):
    """So et al. 2021."""
    return F.relu(x).square()


@register
class Activation(Rule):
    """An activation function of one value."""

    anchor = "activation"
    patterns = (silu, gelu, gelu_tanh, quick_gelu, relu_squared, relu)
