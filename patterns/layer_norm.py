"""Zero mean and unit variance, then weight and bias."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fuseopt.rule import Row, Rule, register


def affine(x, weight: Row, bias: Row | None, eps: float):
    """Ba, Kiros & Hinton 2016; without bias as in Cohere's models."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def plain(x, eps: float):
    """Without weight and bias, as adaptive norms begin."""
    return F.layer_norm(x, x.shape[-1:], None, None, eps)


def by_moments(x, weight: Row, bias: Row, eps: float):
    """The variance as mean of squares less squared mean, which algebra does not bring together."""
    mean = x.mean(-1, keepdim=True)
    variance = x.pow(2).mean(-1, keepdim=True) - mean * mean
    return (x - mean) * torch.rsqrt(variance + eps) * weight + bias


@register
class LayerNorm(Rule):
    """Layer norm, with or without weight and bias."""

    anchor = "norm"
    patterns = (affine, plain, by_moments)
