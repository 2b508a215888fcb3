"""x over the root of its mean square, times a weight.

The places where Llama, Gemma and T5 convert between dtypes differ, and Gemma's weight is one plus a
parameter; neither is seen here.
"""

from __future__ import annotations

import torch.nn.functional as F

from fuseopt.rule import Row, Rule, register


@register
class RmsNorm(Rule):
    """RMS norm, with or without a weight."""

    anchor = "norm"

    @staticmethod
    def pattern(x, weight: Row | None, eps: float):
        """Zhang & Sennrich 2019."""
        return F.rms_norm(x, x.shape[-1:], weight, eps)
