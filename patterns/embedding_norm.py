"""Embeddings summed and normalized: the first layer of BERT and its kin."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fuseopt.rule import Match, Row, Rule, register

EMBEDDINGS = (torch.ops.aten.embedding.default, torch.ops.aten.index_select.default)


def three(word, position, kind, weight: Row, bias: Row, eps: float):
    """Word, position and segment."""
    h = word + position + kind
    return F.layer_norm(h, h.shape[-1:], weight, bias, eps), h


def two(word, position, weight: Row, bias: Row, eps: float):
    """Word and position."""
    h = word + position
    return F.layer_norm(h, h.shape[-1:], weight, bias, eps), h


@register
class EmbeddingNorm(Rule):
    """The norm of a sum of embeddings."""

    anchor = "norm"
    patterns = (three, two)

    def applies(self, match: Match) -> bool:
        """Only to tables that are looked up; other sums are residuals."""
        word = match.node("word")
        return word is not None and word.target in EMBEDDINGS
