"""Elementwise operations that no other rule has a name for."""

from __future__ import annotations

from fuseopt.rule import Rule, register


@register
class Pointwise(Rule):
    """A chain of elementwise operations; what a region without reductions is called at last."""

    anchor = "pointwise"

    @staticmethod
    def pattern(x):
        """Any value."""
        return x
