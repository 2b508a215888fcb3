"""Tensors whose memory holds the negative of what they are: the imaginary part of a conjugate."""

from __future__ import annotations

import torch
from regions import random

import fuseopt


def imaginary(x: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, x * 2).conj().imag


def test_a_kernel_does_not_read_such_a_tensor(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))
    x = random(4, 8)
    assert imaginary(x).is_neg()
    optimized = fuseopt.optimize(lambda x: imaginary(x) * 2 + 1, verify=False)

    torch.testing.assert_close(optimized(x), imaginary(x) * 2 + 1)

    report = optimized.report
    assert any("negated" in r.reason for r in report.rejected)


def test_an_input_may_be_such_a_tensor(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))
    x = imaginary(random(4, 8))
    optimized = fuseopt.optimize(lambda x: x.t().exp() * 2 + 1, verify=False)

    torch.testing.assert_close(optimized(x), x.t().exp() * 2 + 1)
    torch.testing.assert_close(optimized(x.resolve_neg()), x.t().exp() * 2 + 1)
