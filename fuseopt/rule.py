"""Writing rules: a pattern in plain PyTorch, and what to do where it is found.

    @register
    class ResidualNorm(Rule):
        anchor = "norm"

        @staticmethod
        def pattern(x, residual, weight: Row, bias: Row | None, eps: float):
            h = x + residual
            return F.layer_norm(h, h.shape[-1:], weight, bias, eps), h

A pattern is written for a matrix of rows and features. It is matched by meaning: casts, views,
rank, the dimension it runs over and the way it is spelled do not matter. Its first output is the
value that is matched, further ones give names to values inside. What its parameters stand for:

    x                   a value along any axes, torch.Tensor as an annotation meaning the same
    weight: Row         a value that varies along the feature axis only
    weight: Channel     a value that varies along one axis, whichever that is
    mask: Mask          a bool value along any axes
    bias: Row | None    the pattern is also matched without it
    eps: float          any number; found by solving for it, so it may be computed with
    rotary: int         any size
"""

from __future__ import annotations

from fuseopt.match.parameters import Channel, Mask, Row
from fuseopt.match.registry import load_rules, register
from fuseopt.match.rules import CrossedCast, Match, Prewritten, Reject, Rule

__all__ = [
    "Channel",
    "CrossedCast",
    "Mask",
    "Match",
    "Prewritten",
    "Reject",
    "Row",
    "Rule",
    "load_rules",
    "register",
]
