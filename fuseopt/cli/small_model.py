"""A small Llama-style decoder in plain PyTorch, with random weights, for the demonstration."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LAYERS, VOCABULARY, TOKENS = 256, 4, 4, 1000, 64


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalised rows of x, scaled by the weight."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return x [batch, heads, tokens, width] with its positions encoded by rotation."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Layer(nn.Module):
    """Causal self-attention with rotary positions and a gated MLP, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = RMSNorm(width)
        self.gate = nn.Linear(width, 4 * width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for x [batch, tokens, width]."""
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        attended = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class SmallDecoder(nn.Module):
    """Token embedding, layers, a last norm and the projection to the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm = RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, tokens, vocabulary] for token numbers [batch, tokens]."""
        size = WIDTH // HEADS
        positions = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
        steps = torch.arange(0, size, 2, device=ids.device, dtype=torch.float32) / size
        angles = torch.outer(positions, 10000.0**-steps)
        angles = torch.cat((angles, angles), -1)
        x = self.embedding(ids)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def small_decoder(device: torch.device) -> tuple[nn.Module, torch.Tensor]:
    """Return the model and token numbers to call it with."""
    torch.manual_seed(0)
    model = SmallDecoder().to(device).eval()
    return model, torch.randint(0, VOCABULARY, (2, TOKENS), device=device)
