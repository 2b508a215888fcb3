"""Inputs that share memory, in functions that write to one of them."""

from __future__ import annotations

import itertools

import pytest
import torch
from regions import random

import fuseopt
from fuseopt.events import FellBack, Reason


@pytest.fixture(autouse=True)
def interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEOPT_INTERPRET", "1")
    monkeypatch.setenv("FUSEOPT_CACHE_DIR", str(tmp_path))


def at(base, offset, strides=(6, 1)):
    return base.as_strided((4, 6), strides, offset)


# Two tensors of one shape, in one memory unless it says otherwise.
WAYS = {
    "apart": lambda b: (at(b, 0), random(4, 6, seed=1)),
    "beside each other": lambda b: (at(b, 0), at(b, 24)),
    "the same elements": lambda b: (at(b, 0), at(b, 0)),
    "a row further": lambda b: (at(b, 0), at(b, 6)),
    "a row before": lambda b: (at(b, 6), at(b, 0)),
}


def written_and_read(x, y):
    y.add_(1)
    return torch.tanh(x) * y


def captures(optimized) -> list[FellBack]:
    return [e for e in optimized.log.of(FellBack) if e.code is Reason.CAPTURE]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(("first", "then"), list(itertools.permutations(WAYS, 2)))
def test_calls_whose_inputs_overlap_in_other_ways(first, then, dynamic):
    optimized = fuseopt.optimize(written_and_read, dynamic=dynamic)

    for way in (first, then, first):
        ours, eager = (WAYS[way](random(64)) for _ in range(2))
        torch.testing.assert_close(optimized(*ours), written_and_read(*eager))
        torch.testing.assert_close(ours, eager)


def test_a_call_that_runs_as_written_is_told_once():
    optimized = fuseopt.optimize(written_and_read)

    for way in ("apart", "a row further", "a row before"):
        optimized(*WAYS[way](random(64)))

    (event,) = captures(optimized)
    assert "share memory" in event.reason


def test_inputs_that_overlap_and_are_only_read_run_compiled():
    optimized = fuseopt.optimize(lambda x, y: torch.tanh(x) * y)

    for way in WAYS:
        optimized(*WAYS[way](random(64)))

    assert not captures(optimized)


class Keeps(torch.nn.Module):
    """Adds to its buffer and reads its input, which may be a part of that buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", random(8, 6))

    def forward(self, x):
        self.kept.add_(1)
        return torch.tanh(x) * self.kept[:4]


def rows_of_kept(model, start):
    return model.kept[start : start + 4]


@pytest.mark.parametrize("start", [0, 3])
def test_an_input_that_is_part_of_a_buffer(start):
    model, eager = Keeps(), Keeps()
    optimized = fuseopt.optimize(model)

    for take in (lambda _: random(4, 6, seed=1), lambda m: rows_of_kept(m, start)):
        torch.testing.assert_close(optimized(take(model)), eager(take(eager)))
        torch.testing.assert_close(model.kept, eager.kept)
    assert captures(optimized)


class Writes(torch.nn.Module):
    def forward(self, x, y):
        return written_and_read(x, y)


@pytest.mark.parametrize("way", WAYS)
def test_an_exported_program_whose_inputs_overlap(way):
    program = torch.export.export(Writes(), WAYS["apart"](random(64)))
    optimized = fuseopt.optimize(program)

    for each in ("apart", way, "apart"):
        ours, eager = (WAYS[each](random(64)) for _ in range(2))
        torch.testing.assert_close(optimized(*ours), Writes()(*eager))
        torch.testing.assert_close(ours, eager)
    fell_back = [e.reason for e in captures(optimized)]
    assert ("share memory" in " ".join(fell_back)) == (way not in ("apart", "beside each other"))
