"""Group norm and SiLU, as in the residual blocks of diffusion models."""

from __future__ import annotations

import torch.nn.functional as F

from fuseopt.rule import Channel, Rule, register


@register
class GroupNormSilu(Rule):
    """Group norm, then x * sigmoid(x)."""

    anchor = "norm"

    @staticmethod
    def pattern(x, weight: Channel, bias: Channel, eps: float):
        """Written with a group as a row; see `fuseopt.patterns.group_norm`."""
        return F.silu(F.layer_norm(x, x.shape[-1:], None, None, eps) * weight + bias)
