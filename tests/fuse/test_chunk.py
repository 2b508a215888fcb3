"""Which heads are computed by chunks, and of how many rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fuseopt.config import Config
from fuseopt.events import Log, NotFused
from fuseopt.fuse.chunk import RATIO, SLOWER, HeadSize, asked_chunk, choose_chunk
from fuseopt.graph.normalise import describe_inputs
from fuseopt.ops.linear_loss import LINEAR_CROSS_ENTROPY, HeadLoss
from fuseopt.rewrite import rewrite

LAYERS = 8192 * 6 * 0.97e9  # operations of a step of a model of a billion parameters


def head(rows=8192, classes=128256, features=2048, **others) -> HeadSize:
    return HeadSize(rows, classes, features, itemsize=2, loss_itemsize=4, **others)


@pytest.mark.parametrize("layers", [0.0, LAYERS], ids=["the head alone", "a step"])
def test_a_large_vocabulary_takes_a_quarter_of_the_memory(layers):
    size = head(other=layers)

    chosen = choose_chunk(size)

    assert not chosen.reason
    assert size.slower(chosen.rows) <= SLOWER
    assert size.bytes_before >= 4 * size.bytes_after(chosen.rows)
    assert chosen.saved == size.bytes_before - size.bytes_after(chosen.rows)


def test_a_chunk_is_as_small_as_its_time_allows():
    alone, within = choose_chunk(head()), choose_chunk(head(other=LAYERS))

    assert within.rows < alone.rows
    assert head(other=LAYERS).slower(within.rows // 2) > SLOWER


def test_chunks_are_of_about_the_same_size():
    chosen = choose_chunk(head()).rows

    assert chosen < 8192 / 2
    assert 0 <= head().chunks(chosen) * chosen - 8192 < chosen / 8
    assert chosen % 128 == 0


def test_few_rows_are_no_gain():
    assert "less than two chunks" in choose_chunk(head(rows=512)).reason
    few = head(rows=2048, features=4096, other=LAYERS)
    assert "of memory instead of" in choose_chunk(few).reason
    assert few.bytes_before < RATIO * few.bytes_after(1024)


def test_a_head_that_chunks_would_slow_down_is_left_alone():
    assert "slower" in choose_chunk(head(rows=3000, features=16384)).reason


def test_a_frozen_weight_needs_no_sum():
    assert choose_chunk(head(of_weight=False)).rows == 1024
    assert head(of_weight=False).slower(1024) <= 0


def test_without_gradients_logits_of_one_chunk_are_held():
    size = head(trains=False, of_weight=False)

    assert size.bytes_after(1024) == 1024 * 128256 * 2


@pytest.mark.parametrize(("rows", "chunk"), [(40, 16), (512, 64), (4096, 512), (8188, 1024)])
def test_chunks_that_are_asked_for_are_an_eighth(rows, chunk):
    assert asked_chunk(rows) == chunk


class Model(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(48))
        self.head = nn.Linear(1024, classes, bias=False)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        logits = self.head(x).float()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), t.view(-1))


def rewritten(classes: int, rows: int) -> tuple[list[HeadLoss], Log]:
    """What becomes of a model without data, on a device that is said to have kernels."""
    log, made = Log(), []

    def backend(gm, _):
        made.append(rewrite(gm, Config(verify=False), log, lambda _: True))
        return gm.forward

    with torch.device("meta"):
        model = Model(classes).to(torch.bfloat16)
        given = torch.empty(4, rows // 4, 1024, dtype=torch.bfloat16)
        torch.compile(model, backend=backend)(given, torch.empty(4, rows // 4, dtype=torch.int64))
    torch._dynamo.reset()
    nodes = [
        n
        for one in made
        for n in one.gm.graph.find_nodes(op="call_function", target=LINEAR_CROSS_ENTROPY)
    ]
    assert [e.memory_saved > 0 for one in made for e in one.fused] == [True] * len(nodes)
    return [HeadLoss.of(n.args[4:]) for n in nodes], log


def test_a_large_head_is_taken_without_being_asked_for():
    (head_loss,), _ = rewritten(100_000, 8192)

    assert head_loss.chunk == 2048
    assert head_loss.wants == (True, True, False)


def test_a_head_that_does_not_pay_is_declined_with_the_reason():
    taken, log = rewritten(100_000, 512)

    assert not taken
    (declined,) = log.of(NotFused)
    assert declined.rule == "linear_cross_entropy"
    assert "less than two chunks" in declined.reason


def test_the_rewritten_graph_knows_its_parameters():
    """What is read from parameters is told from them, as by Dynamo's own graph."""
    made = []

    def backend(gm, given):
        rewritten = rewrite(gm, Config(verify=False), Log(), lambda _: True).gm
        made.append([describe_inputs(g, given) for g in (gm, rewritten)])
        assert rewritten is not gm
        return gm.forward

    with torch.device("meta"):
        model = Model(100_000).to(torch.bfloat16)
        given = torch.empty(4, 2048, 1024, dtype=torch.bfloat16)
        torch.compile(model, backend=backend)(given, torch.empty(4, 2048, dtype=torch.int64))
    torch._dynamo.reset()

    ((original, ours),) = made
    assert ours == original
    assert any(i.kind == "parameter" for i in ours)
