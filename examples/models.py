"""Models at the sizes people serve, for `fuseopt report` and `fuseopt bench`, with random weights.

fuseopt bench examples/models.py:bert_large examples/models.py:llama_1b --json models.json
fuseopt bench examples/models.py:llama_1b_training --train
"""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _made(model_class: Any, config: Any) -> nn.Module:
    """Return a model in bfloat16, in evaluation mode."""
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with _device():
            return model_class(config).eval()
    finally:
        torch.set_default_dtype(default)


def _ids(vocabulary: int, batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, tokens), device=_device())


def bert_large(batch: int = 32, tokens: int = 512) -> Case:
    config = hf.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    return _made(hf.BertModel, config), (), {"input_ids": _ids(30522, batch, tokens)}


def bert_large_one() -> Case:
    return bert_large(1, 128)


def gpt2_medium(batch: int = 8, tokens: int = 1024) -> Case:
    config = hf.GPT2Config(n_embd=1024, n_layer=24, n_head=16)
    kwargs = {"input_ids": _ids(50257, batch, tokens), "use_cache": False}
    model = _made(hf.GPT2LMHeadModel, config)
    # Named: transformers warns where it has to guess the loss, and a warning breaks the graph.
    model.loss_type = "ForCausalLM"
    return model, (), kwargs


def llama_1b(batch: int = 4, tokens: int = 2048) -> Case:
    config = hf.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
    )
    kwargs = {"input_ids": _ids(128256, batch, tokens), "use_cache": False}
    return _made(hf.LlamaForCausalLM, config), (), kwargs


def llama_1b_one() -> Case:
    return llama_1b(1, 128)


def qwen3_600m(batch: int = 4, tokens: int = 2048) -> Case:
    config = hf.Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    kwargs = {"input_ids": _ids(151936, batch, tokens), "use_cache": False}
    return _made(hf.Qwen3ForCausalLM, config), (), kwargs


def gemma2(batch: int = 4, tokens: int = 2048) -> Case:
    config = hf.Gemma2Config(num_hidden_layers=12)
    kwargs = {"input_ids": _ids(256000, batch, tokens), "use_cache": False}
    return _made(hf.Gemma2ForCausalLM, config), (), kwargs


def t5_large_encoder(batch: int = 16, tokens: int = 512) -> Case:
    config = hf.T5Config(d_model=1024, d_ff=4096, num_layers=24, num_heads=16, d_kv=64)
    return _made(hf.T5EncoderModel, config), (), {"input_ids": _ids(32128, batch, tokens)}


def vit_large(batch: int = 64) -> Case:
    config = hf.ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    model = _made(hf.ViTModel, config)
    pixels = torch.randn(batch, 3, 224, 224, device=_device(), dtype=torch.bfloat16)
    return model, (), {"pixel_values": pixels}


def convnext_base(batch: int = 64) -> Case:
    config = hf.ConvNextConfig(depths=[3, 3, 27, 3], hidden_sizes=[128, 256, 512, 1024])
    model = _made(hf.ConvNextModel, config)
    pixels = torch.randn(batch, 3, 224, 224, device=_device(), dtype=torch.bfloat16)
    return model, (), {"pixel_values": pixels}


# ------------------------------------------------------------------------------------ training


def _learning(case: Case, labels: torch.Tensor | None = None) -> Case:
    """Return a model in training mode whose output has a loss: of the next tokens, or of labels."""
    model, args, kwargs = case
    chosen = kwargs["input_ids"] if labels is None else labels
    return model.train(), args, {**kwargs, "labels": chosen}


def bert_large_training(batch: int = 16, tokens: int = 512) -> Case:
    config = hf.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    ids = _ids(30522, batch, tokens)
    return _learning((_made(hf.BertForMaskedLM, config), (), {"input_ids": ids}))


def gpt2_medium_training() -> Case:
    return _learning(gpt2_medium())


def llama_1b_training() -> Case:
    return _learning(llama_1b())


def qwen3_600m_training() -> Case:
    return _learning(qwen3_600m())


def vit_large_training(batch: int = 64) -> Case:
    config = hf.ViTConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        num_labels=1000,
        problem_type="single_label_classification",  # else set by the first step, which recompiles
    )
    model = _made(hf.ViTForImageClassification, config)
    pixels = torch.randn(batch, 3, 224, 224, device=_device(), dtype=torch.bfloat16)
    return _learning((model, (), {"pixel_values": pixels}), _ids(1000, batch, 1).view(-1))
