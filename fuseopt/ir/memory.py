"""The memory that a tensor spans, from its first element to its last."""

from __future__ import annotations

import torch


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory as a vector that shares it; elements between those of the tensor too."""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,))
