"""In models as they are, every norm, activation, softmax and rotation is found where it runs."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

transformers = pytest.importorskip("transformers")

from fuseopt.config import Config  # noqa: E402
from fuseopt.events import Log  # noqa: E402
from fuseopt.fuse.classify import Role, classify, is_widening  # noqa: E402
from fuseopt.graph.export import normalise_program  # noqa: E402
from fuseopt.graph.lift import lift  # noqa: E402
from fuseopt.match.find import Search  # noqa: E402
from fuseopt.match.registry import default_registry  # noqa: E402
from fuseopt.match.subject import Subject  # noqa: E402
from fuseopt.plan import Plan, plan_graph  # noqa: E402

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
IDS = torch.arange(16).reshape(2, 8)
CPU = torch.device("cpu")


def config_of(name: str) -> tuple[type, object]:
    t = transformers
    match name:
        case "bert":
            return t.BertModel, t.BertConfig(**SMALL)
        case "llama":
            return t.LlamaForCausalLM, t.LlamaConfig(**GROUPED)
        case "gemma2":
            return t.Gemma2ForCausalLM, t.Gemma2Config(**GROUPED, head_dim=16)
        case "qwen3":
            return t.Qwen3ForCausalLM, t.Qwen3Config(**GROUPED, head_dim=16)
        case "gpt2":
            small = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}
            return t.GPT2LMHeadModel, t.GPT2Config(**small)
        case "t5":
            small = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
            return t.T5ForConditionalGeneration, t.T5Config(**small, vocab_size=100)
        case "vit":
            small = {k: v for k, v in SMALL.items() if k != "vocab_size"}
            return t.ViTModel, t.ViTConfig(**small, image_size=32, patch_size=8)
    raise AssertionError(name)


def inputs_of(name: str) -> dict[str, object]:
    if name == "vit":
        return {"pixel_values": torch.zeros(2, 3, 32, 32)}
    decoder = {"decoder_input_ids": IDS.clone()} if name == "t5" else {}  # two embeddings
    return {"input_ids": IDS, **decoder} | ({} if name == "bert" else {"use_cache": False})


def planned(name: str, dtype: torch.dtype, *, dynamic: bool = False) -> tuple[Plan, Counter[str]]:
    """The plan of a model, and how often each rule is found in its regions."""
    make, config = config_of(name)
    config._attn_implementation = "eager"
    model = make(config).eval().to(dtype)
    given = {
        k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in inputs_of(name).items()
    }
    with torch.no_grad():
        auto = torch.export.Dim.AUTO
        sizes = {k: {1: auto} if isinstance(v, torch.Tensor) else None for k, v in given.items()}
        program = torch.export.export(
            model, (), given, strict=False, dynamic_shapes=sizes if dynamic else None
        )
    graph = normalise_program(program, 0).graph
    plan = plan_graph(graph, CPU, Config(), Log())
    verdicts = classify(graph.gm.graph, CPU)
    found: Counter[str] = Counter()
    known: dict[str, list[str]] = {}
    for site in plan.sites:
        region = site.region
        if region.key not in known:
            lifted = lift(region.nodes, lambda n: verdicts[n].role is Role.FREE or is_widening(n))
            search = Search(Subject(region.nodes, lifted), default_registry())
            known[region.key] = [f.match.rule for f in search.all()]
        found.update(known[region.key])
    return plan, found


# Counted from the models' modules. An activation that is one operation of its own between matrix
# products is no region (BERT's and ViT's GELU, T5's ReLU).
EXPECTED = {
    "bert": {"embedding_norm": 1, "residual_norm": 4, "masked_softmax": 2},
    "llama": {
        "rms_norm": 1,
        "residual_norm": 4,
        "rope": 4,
        "masked_softmax": 2,
        "gated_activation": 2,
    },
    "gemma2": {
        "rms_norm": 5,
        "residual_norm": 4,
        "rope": 4,
        "masked_softmax": 2,
        "gated_activation": 2,
        "softcap": 1,
    },
    "qwen3": {
        "rms_norm": 5,
        "residual_norm": 4,
        "rope": 4,
        "masked_softmax": 2,
        "gated_activation": 2,
    },
    "gpt2": {"embedding_norm": 1, "residual_norm": 4, "masked_softmax": 2, "activation": 2},
    "t5": {"rms_norm": 2, "residual_norm": 10, "masked_softmax": 6},
    "vit": {"residual_norm": 5, "masked_softmax": 2},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", EXPECTED)
def test_everything_expected_is_found(name, dtype):
    plan, found = planned(name, dtype)

    assert found == EXPECTED[name]
    norms = [s for s in plan.sites if s.rule.endswith("norm")]
    assert all(s.name.startswith(f"fused_{s.rule}_") for s in norms)


def test_dynamic_sizes_change_nothing():
    plan, found = planned("llama", torch.float32, dynamic=True)

    assert found == EXPECTED["llama"]
    assert any(site.sizes for site in plan.sites)


def test_equal_layers_are_matched_once(monkeypatch):
    subjects = []
    monkeypatch.setattr(
        "fuseopt.match.name.Subject",
        lambda nodes, lifted: subjects.append(len(nodes)) or Subject(nodes, lifted),
    )

    plan, _ = planned("llama", torch.float32)

    assert len(subjects) == len({s.region.key for s in plan.sites}) < len(plan.sites)
