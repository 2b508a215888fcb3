"""Values kept below a cap by tanh, as Gemma 2 does with its logits."""

from __future__ import annotations

import torch

from fuseopt.rule import Rule, register


@register
class Softcap(Rule):
    """cap * tanh(x / cap)."""

    anchor = "activation"

    @staticmethod
    def pattern(x, cap: float):
        """Bello et al. 2016, section 5."""
        return torch.tanh(x / cap) * cap
