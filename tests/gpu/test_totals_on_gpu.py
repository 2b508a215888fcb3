"""Sums over rows on a GPU: as exact as PyTorch's, and the same bit for bit on every call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fuseopt
from fuseopt.events import RegionFused, RolledBack

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SIZES = [(4096, 1024), (1000, 2048), (333, 4096), (257, 5120), (64, 8192), (40, 12289), (8192, 96)]


def gradients(function, *given):
    leaves = [g.detach().clone().requires_grad_() for g in given]
    out = function(*leaves)
    torch.manual_seed(1)
    out.backward(torch.randn_like(out))
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize(("rows", "length"), SIZES)
def test_gradients_of_a_norm_are_exact_and_repeat(rows, length, dtype):
    def norm(x, w, b):
        return F.gelu(F.layer_norm(x, (length,), w, b))

    torch.manual_seed(0)
    given = [
        torch.randn(*s, device="cuda", dtype=dtype) for s in ((rows, length), (length,), (length,))
    ]
    optimized = fuseopt.optimize(norm)

    found = gradients(optimized, *given)

    assert not optimized.log.of(RolledBack)
    assert any(e.launches_after == 2 for e in optimized.log.of(RegionFused))
    exact = gradients(norm, *(g.double() for g in given))
    eager = gradients(norm, *given)
    for ours, theirs, truth in zip(found, eager, exact, strict=True):
        scale = truth.abs().max()
        error, limit = ((t.double() - truth).abs().max() / scale for t in (ours, theirs))
        assert error <= 2 * limit + (1e-2 if dtype == torch.bfloat16 else 1e-6)
    again = gradients(optimized, *given)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
