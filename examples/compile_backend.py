"""Use fuseopt as a backend of torch.compile, which finds it by name, and see what it did.

python examples/compile_backend.py
"""

import torch
import torch.nn.functional as F

import fuseopt  # only for the report; the backend is found without it


def attention_scores(query, key, mask):
    """Scaled and masked attention probabilities, written out."""
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return F.softmax(scores + mask, dim=-1)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    query, key = (torch.randn(2, 4, 64, 32, device=device) for _ in range(2))
    mask = torch.zeros(64, 64, device=device).masked_fill_(
        torch.ones(64, 64, device=device).triu(1).bool(), float("-inf")
    )

    log = fuseopt.Log()
    compiled = torch.compile(attention_scores, backend="fuseopt", options={"log": log})
    with torch.no_grad():
        expected = attention_scores(query, key, mask)
        result = compiled(query, key, mask)

    difference = (result - expected).abs().max().item()
    print(fuseopt.Report.from_log(log))
    print(f"largest difference from the original: {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
