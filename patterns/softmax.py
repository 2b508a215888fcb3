"""Softmax and its logarithm, along any dimension, however they are kept from overflow."""

from __future__ import annotations

import torch.nn.functional as F

from fuseopt.rule import Rule, register


def softmax(x):
    """exp(x) over the sum of exp(x)."""
    return F.softmax(x, -1)


def log_softmax(x):
    """x less the logarithm of the sum of exp(x)."""
    return F.log_softmax(x, -1)


@register
class Softmax(Rule):
    """Softmax or log-softmax."""

    anchor = "softmax"
    patterns = (softmax, log_softmax)
