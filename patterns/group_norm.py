"""Zero mean and unit variance over each group of channels, then weight and bias a channel.

Here a group is a row: groups are found where the rows of the normalization are part of an axis.
"""

from __future__ import annotations

import torch.nn.functional as F

from fuseopt.rule import Channel, Rule, register


@register
class GroupNorm(Rule):
    """Group norm and instance norm."""

    anchor = "norm"

    @staticmethod
    def pattern(x, weight: Channel, bias: Channel, eps: float):
        """Wu & He 2018."""
        return F.layer_norm(x, x.shape[-1:], None, None, eps) * weight + bias
