"""Cross-entropy of a linear layer, by chunks of rows, so that all logits never exist at once."""

from __future__ import annotations

import torch.nn.functional as F

from fuseopt.rule import Rule, register


@register
class LinearCrossEntropy(Rule):
    """Cross-entropy of a linear layer, in chunks that are never all in memory.

    It is used where it saves memory and costs no more than 5% of a step; passed in `rules`, also
    where it does not.
    """

    anchor = "cross-entropy"
    before_autograd = True

    @staticmethod
    def pattern(x, weight, bias, target):
        """Also with casts, slices of rows, a scale or a cap between layer and loss."""
        return F.cross_entropy(F.linear(x, weight, bias), target)
