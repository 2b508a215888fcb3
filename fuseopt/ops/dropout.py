"""Dropout from seeds: which elements are kept is computed wherever it is needed, and never stored.

`graph.seeded_dropout` puts these in place of PyTorch's dropout. They are defined as PyTorch
operators, so that a graph that has them can be traced again and runs without kernels too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from fuseopt.ir import dims
from fuseopt.ir.expr import Expr, apply
from fuseopt.ir.philox import random_bits
from fuseopt.ops.build import reshape
from fuseopt.ops.create import create
from fuseopt.ops.declare import Call, T, sample

_CHUNK = 1 << 22  # elements whose 64-bit intermediates are alive at once

_library = torch.library.Library("fuseopt", "FRAGMENT")
_library.define(
    "dropout_seeds(int count, Device device) -> Tensor[]",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_library.define("dropout_keep(Tensor seed, SymInt[] shape, float p) -> Tensor")


def threshold(p: float) -> int:
    """Return the number below which 32 random bits drop an element that is dropped at rate p."""
    return round(p * (1 << 32))


def draw_seeds(count: int, device: torch.device) -> list[torch.Tensor]:
    """Return that many seeds, each a tensor without dimensions, in memory that they share.

    They come from the device's default generator, which CUDA graphs advance at each replay.
    """
    # Two words a seed: every one begins at a multiple of 16 bytes, as kernels assume.
    words = torch.empty((count, 2), dtype=torch.int64, device=device).random_()
    return list(words[:, 0].unbind())


def _separate_seeds(count: int, device: torch.device) -> list[torch.Tensor]:
    """As an operator may return them."""
    return [seed.clone() for seed in draw_seeds(count, device)]


def _keep(seed: torch.Tensor, shape: list[int], p: float) -> torch.Tensor:
    kept = torch.empty(shape, dtype=torch.bool, device=seed.device)
    flat = kept.view(-1)
    for start in range(0, flat.numel(), _CHUNK):
        end = min(start + _CHUNK, flat.numel())
        index = torch.arange(start, end, device=seed.device)
        flat[start:end] = random_bits(seed, index) >= threshold(p)
    return kept


def _fake_seeds(count: int, device: torch.device) -> list[torch.Tensor]:
    return [torch.empty((), dtype=torch.int64, device=device) for _ in range(count)]


def _fake_keep(seed: torch.Tensor, shape: list[Any], p: float) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bool, device=seed.device)


_library.impl("dropout_seeds", _separate_seeds, "BackendSelect")  # no tensor says which device
_library.impl("dropout_keep", _keep, "CompositeExplicitAutograd")
torch.library.register_fake("fuseopt::dropout_seeds", _fake_seeds, lib=_library)
torch.library.register_fake("fuseopt::dropout_keep", _fake_keep, lib=_library)

DRAW_SEEDS: OpOverload = torch.ops.fuseopt.dropout_seeds.default
KEEP: OpOverload = torch.ops.fuseopt.dropout_keep.default


@create("fuseopt.dropout_keep.default", samples=[sample(T((), "i", 0, 2.0**62), [5, 7], 0.3)])
def dropout_keep(call: Call, seed: Expr, _: Any, p: float) -> Expr:
    """Whether each element is kept, by the random bits of its place in row-major order."""
    place = reshape(call.arena.iota(dims.product(call.shape)), call.shape)
    return apply("random_bits", seed, place) >= threshold(p)
