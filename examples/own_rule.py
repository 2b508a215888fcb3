"""Name a chain of your own, so that reports and tests can speak of it.

A chain is fused whether or not a rule names it. A rule gives it a name to look for, may decline it,
and may put a kernel of your own in its place.

    python examples/own_rule.py
"""

import torch
from torch import nn

import fuseopt
from fuseopt.rule import Reject, Row, Rule


class ScaledTanh(Rule):
    """A learned scale and shift by feature around a tanh (Zhu et al. 2025)."""

    anchor = "activation"

    @staticmethod
    def pattern(x, alpha: float, weight: Row, bias: Row):
        return torch.tanh(alpha * x) * weight + bias

    def check(self, match):
        if match["alpha"] == 0:
            return Reject("with alpha = 0 the input does not matter")
        return None


class DynamicTanh(nn.Module):
    """The layer that the rule is about."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))
        self.bias = nn.Parameter(torch.rand(width))

    def forward(self, x):
        return self.weight * torch.tanh(0.5 * x) + self.bias


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), DynamicTanh(64), nn.Linear(64, 64)).to(device).eval()
    x = torch.randn(16, 64, device=device)

    with torch.no_grad():
        expected = model(x)
        optimised = fuseopt.optimize(model, (x,), rules=[ScaledTanh])
        result = optimised(x)

    report = optimised.report
    print(report)
    difference = (result - expected).abs().max().item()
    print(f"\nlargest difference from the original: {difference:.1e}")
    report.assert_fused("scaled_tanh")
    return report


if __name__ == "__main__":
    main()
