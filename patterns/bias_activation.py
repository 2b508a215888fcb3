"""A bias added along the features, then an activation function."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fuseopt.rule import Row, Rule, register


def silu(x, bias: Row):
    """(x + bias) * sigmoid(x + bias)."""
    return F.silu(x + bias)


def gelu(x, bias: Row):
    """GELU of x + bias."""
    return F.gelu(x + bias)


def gelu_tanh(x, bias: Row):
    """GELU of x + bias, by a tanh."""
    return F.gelu(x + bias, approximate="tanh")


def relu(x, bias: Row):
    """The positive part of x + bias."""
    return F.relu(x + bias)


def sigmoid(x, bias: Row):
    """The sigmoid of x + bias."""
    return torch.sigmoid(x + bias)


@register
class BiasActivation(Rule):
    """An activation function of a value and a bias."""

    anchor = "activation"
    patterns = (silu, gelu, gelu_tanh, relu, sigmoid)
