"""Optimise a plain PyTorch model and read what was fused.

On a GPU the fused kernels run. On a CPU the original operations run, and the report shows what
would be fused; FUSEOPT_INTERPRET=1 runs the kernels there too, slowly.

    python examples/optimise_a_model.py
"""

import torch
from torch import nn

import fuseopt


class Block(nn.Module):
    """A feed-forward block with a norm before and a residual after."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x)), approximate="tanh"))


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(256) for _ in range(4))).to(device).eval()
    x = torch.randn(8, 128, 256, device=device)

    with torch.no_grad():
        expected = model(x)
        optimised = fuseopt.optimize(model)
        result = optimised(x)

    print(optimised.report)
    difference = (result - expected).abs().max().item()
    print(f"\nlargest difference from the original: {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
