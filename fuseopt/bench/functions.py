"""The functions that the rows of the benchmark time: memory-bound chains as people write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """RMS norm in Llama's cast order."""
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Layer norm with weight and bias."""
    return F.layer_norm(x, (x.shape[-1],), w, b)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax along the rows."""
    return F.softmax(x, -1)


def add_rms_norm(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual sum and its RMS norm."""
    s = x + r
    return s, rms_norm(s, w)


def cross_entropy(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of logits against class numbers."""
    return F.cross_entropy(x.float(), t)


def mul_add_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Scale and shift by feature, then relu."""
    return torch.relu(x * w + b)


def bias_gelu(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Bias and exact gelu."""
    return F.gelu(x + b)


def bias_gelu_dropout_add(x: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Bias, gelu, dropout and a residual."""
    return F.dropout(F.gelu(x + b), 0.1) + r


def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Gated silu."""
    return F.silu(a) * b


def geglu_tanh(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Gated gelu, tanh form."""
    return F.gelu(a, approximate="tanh") * b


def gpt2_new_gelu(x: torch.Tensor) -> torch.Tensor:
    """The tanh form of gelu written out."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3))))


def add_layer_norm(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """Layer norm of a residual sum."""
    return F.layer_norm(x + r, (x.shape[-1],), w, b)


def layer_scale_add(x: torch.Tensor, g: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Scale by feature, then add a residual."""
    return x * g + r


def adaln(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Layer norm modulated by a scale and shift for each sample."""
    return F.layer_norm(x, (x.shape[-1],)) * (1 + scale) + shift


def masked_softmax(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """Attention probabilities: scale, additive mask, softmax in float32."""
    return torch.softmax(x * 0.125 + m, -1, dtype=torch.float32).to(x.dtype)


def softcap_softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of soft-capped scores."""
    return torch.softmax(30 * torch.tanh(x / 30), -1)


def softmax_dim1(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the middle dimension."""
    return torch.softmax(x, 1)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def rope(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate-half position embedding of queries and keys."""
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def emb_ln(
    ids: torch.Tensor, wte: torch.Tensor, wpe: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """Layer norm of token plus position embeddings."""
    positions = torch.arange(ids.shape[1], device=ids.device)
    return F.layer_norm(wte[ids] + wpe[positions], (wte.shape[1],), w, b)


def gn_silu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Group norm of 32 groups, then silu."""
    return F.silu(F.group_norm(x, 32, w, b))


def bn_relu_eval(
    x: torch.Tensor, m: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    """Batch norm in evaluation, then relu."""
    return torch.relu(F.batch_norm(x, m, v, w, b))


def dequant_add(q: torch.Tensor, s: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Dequantised int8 plus a residual."""
    return q.to(r.dtype) * s + r


def quant_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows quantised to int8 by their largest magnitude."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale).clamp(-128, 127).to(torch.int8), scale


def rms_quant_fp8(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm, then rows quantised to float8 (e4m3) by their largest magnitude."""
    y = rms_norm(x, w)
    scale = y.abs().amax(-1, keepdim=True).float() / 448
    return (y / scale).to(torch.float8_e4m3fn), scale
