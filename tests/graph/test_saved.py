"""What the forward graph keeps for the backward one: no more than torch.compile's default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

from fuseopt.graph.joint import write_composites
from fuseopt.graph.parting import part

ROWS, WORDS = 64, 1000


def kept(function: Callable[..., Any], *args: Any, inductor: bool) -> list[torch.Tensor]:
    """The tensors that the forward graph gives beside the user's results and its own inputs."""
    torch._dynamo.reset()
    found: list[torch.Tensor] = []

    def partition(joint: fx.GraphModule, *rest: Any, num_fwd_outputs: int, **options: Any) -> Any:
        if not inductor:
            write_composites(joint, lambda _: True)
        split = min_cut_rematerialization_partition if inductor else part
        parts = split(joint, *rest, num_fwd_outputs=num_fwd_outputs, **options)
        outputs = parts[0].graph.output_node().args[0]
        saved = set(outputs[num_fwd_outputs:]) - set(outputs[:num_fwd_outputs])
        found.extend(n.meta["val"] for n in saved if n.op != "placeholder")
        return parts

    def backend(gm: fx.GraphModule, examples: Any) -> Any:
        return aot_module_simplified(
            gm,
            examples,
            fw_compiler=lambda part, _: part,
            bw_compiler=lambda part, _: part,
            partition_fn=partition,
            decompositions=select_decomp_table() if inductor else {},
        )

    torch.compile(function, backend=backend, fullgraph=True)(*args)
    return [t for t in found if isinstance(t, torch.Tensor)]


def size(tensors: list[torch.Tensor]) -> int:
    """Bytes, a statistic (one number a row, or in all) counted as the float32 that it is here.

    Those that PyTorch's ops give for 16-bit inputs on the CPU have 16 bits.
    """
    return sum(
        t.numel() * (max(t.itemsize, 4) if _is_statistic(t) else t.itemsize) for t in tensors
    )


def _is_statistic(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point and tensor.shape[-1:] in ((), (1,))


def losses() -> Iterator[Any]:
    """Functions of (logits, classes) and the dtype of the logits."""

    def upcast(x, t):
        return F.cross_entropy(x.float(), t)

    def plain(x, t):
        return F.cross_entropy(x, t, ignore_index=3)

    def smoothed(x, t):
        return F.cross_entropy(x.float(), t, label_smoothing=0.1, reduction="sum")

    def capped(x, t):
        x = 30 * torch.tanh(x.float() / 30)
        return F.cross_entropy(x, t) + 1e-4 * torch.logsumexp(x, -1).square().mean()

    for function in (upcast, plain, smoothed, capped):
        for dtype in (torch.float32, torch.bfloat16):
            yield pytest.param(function, dtype, id=f"{function.__name__}-{str(dtype)[6:]}")


@pytest.mark.parametrize(("loss", "dtype"), list(losses()))
def test_a_loss_keeps_the_logits_and_two_numbers_a_row(loss, dtype) -> None:
    head = nn.Linear(32, WORDS, dtype=dtype)
    x = torch.randn(ROWS, 32, dtype=dtype, requires_grad=True)
    t = torch.randint(0, WORDS, (ROWS,))

    def step(x, t):
        return loss(head(x), t)

    ours = kept(step, x, t, inductor=False)
    large = [t for t in ours if t.numel() >= ROWS * WORDS]
    assert [t.dtype for t in large] == [dtype]
    assert size(ours) <= size(kept(step, x, t, inductor=True))


def hugging_face(name: str, attention: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config, model = {
        "llama": (
            transformers.LlamaConfig(
                hidden_size=64,
                intermediate_size=172,
                num_attention_heads=4,
                num_key_value_heads=2,
                num_hidden_layers=2,
                vocab_size=128,
                use_cache=False,
                attn_implementation=attention,
            ),
            transformers.LlamaModel,
        ),
        "gpt2": (
            transformers.GPT2Config(
                n_embd=64,
                n_head=4,
                n_layer=2,
                vocab_size=128,
                bos_token_id=0,
                eos_token_id=0,
                resid_pdrop=0,
                attn_pdrop=0,
                embd_pdrop=0,
                use_cache=False,
                attn_implementation=attention,
            ),
            transformers.GPT2Model,
        ),
        "bert": (
            transformers.BertConfig(
                hidden_size=64,
                num_attention_heads=4,
                num_hidden_layers=2,
                intermediate_size=256,
                vocab_size=128,
                hidden_dropout_prob=0,
                attention_probs_dropout_prob=0,
                attn_implementation=attention,
            ),
            transformers.BertModel,
        ),
    }[name]
    return model(config).train()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_keeps_no_more_than_inductor_would(name, attention, dtype) -> None:
    model = hugging_face(name, attention).to(dtype)
    ids = torch.randint(0, 128, (2, 32))

    def step(ids):
        return model(ids).last_hidden_state

    ours = kept(step, ids, inductor=False)
    assert size(ours) <= size(kept(step, ids, inductor=True))
    if dtype == torch.bfloat16:
        wide = [t for t in ours if t.dtype == torch.float32 and not _is_statistic(t)]
        # What is float32 is what attention keeps of each row.
        assert all(t.numel() <= 2 * 32 * 4 for t in wide)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return x * angles.cos().to(x.dtype) + turned * angles.sin().to(x.dtype)


def tables() -> torch.Tensor:
    half = torch.arange(ROWS)[:, None] * 0.5 ** torch.arange(4.0)
    return torch.cat((half, half), -1)


def test_a_gated_activation_is_computed_again_for_the_product_that_reads_it() -> None:
    up, gate, down = (nn.Linear(32, 96), nn.Linear(32, 96), nn.Linear(96, 32))
    x = torch.randn(ROWS, 32, requires_grad=True)

    def step(x):
        return down(F.silu(gate(x)) * up(x))

    shapes = [tuple(t.shape) for t in kept(step, x, inductor=False)]
    assert sorted(shapes) == [(ROWS, 96), (ROWS, 96)]


def test_of_a_norm_and_the_product_that_reads_it_a_number_a_row_is_kept() -> None:
    layer = nn.Linear(32, 32, dtype=torch.bfloat16)
    weight = nn.Parameter(torch.ones(32, dtype=torch.bfloat16))
    x = torch.randn(ROWS, 32, dtype=torch.bfloat16, requires_grad=True)

    def step(x):
        return layer(rms_norm(x, weight))

    assert [tuple(t.shape) for t in kept(step, x, inductor=False)] == [(ROWS, 1)]


@pytest.mark.parametrize("layers", [1, 3])
def test_heads_are_normed_rotated_and_repeated_again(layers) -> None:
    """Kept of each layer: queries, keys and values as products give them, and the result twice.

    The CPU lays it out in another way than the next product reads it.
    """
    weights = [
        [nn.Parameter(torch.randn(16, width) / 4) for width in (16, 8, 8)] for _ in range(layers)
    ]
    x = torch.randn(2, ROWS, 16, requires_grad=True)
    ones = nn.Parameter(torch.ones(8))

    def step(x):
        angles = tables()
        for q, k, v in weights:
            q, k, v = ((x @ w).unflatten(-1, (-1, 8)) for w in (q, k, v))
            q, k = (rotated(rms_norm(t, ones).transpose(1, 2), angles) for t in (q, k))
            k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1) for t in (k, v.transpose(1, 2)))
            k, v = (t.reshape(2, 2, ROWS, 8) for t in (k, v))
            x = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x

    large = [t for t in kept(step, x, inductor=False) if t.numel() > 2 * ROWS * 2]
    in_memory = {t.untyped_storage()._cdata: t.numel() for t in large}
    allowed = layers * (16 + 8 + 8 + 2 * 16) * 2 * ROWS
    assert sum(in_memory.values()) <= allowed + tables().numel() * 2


def test_residual_sums_are_kept_and_not_added_up_again() -> None:
    layers = [nn.Linear(32, 32) for _ in range(4)]
    x = torch.randn(ROWS, 32, requires_grad=True)

    def step(x):
        for layer in layers:
            x = x + torch.tanh(layer(x))
        return x

    given = [t.numel() for t in kept(step, x, inductor=False)]
    assert sum(given) <= 2 * 4 * ROWS * 32
