from __future__ import annotations

import math

import pytest
import torch
from sample_kernels import unary_kernel

from fuseopt.errors import KernelError
from fuseopt.runtime.autotune import choose, time_candidates
from fuseopt.runtime.cache import Store
from fuseopt.runtime.compile import Target, compile_kernel
from fuseopt.runtime.launch import Launcher


def test_the_fastest_is_chosen_and_remembered(tmp_path):
    measured = []

    def measure() -> list[float]:
        measured.append(1)
        return [3e-5, 1e-5, math.inf]

    key = "norm [4096, 1024] bf16 on a chip / any text\n"
    assert choose(Store(tmp_path), key, ["a", "b", "c"], measure) == 1
    assert choose(Store(tmp_path), key, ["a", "b", "c"], measure) == 1
    assert len(measured) == 1
    # Another key, other candidates or another order of them are measured anew.
    assert choose(Store(tmp_path), key + "2", ["a", "b", "c"], measure) == 1
    assert choose(Store(tmp_path), key, ["b", "a", "c"], measure) == 1
    assert len(measured) == 3


def test_when_nothing_runs_nothing_is_remembered(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(KernelError, match="none of the 2 candidates for k runs"):
        choose(store, "k", ["a", "b"], lambda: [math.inf, math.inf])
    assert choose(store, "k", ["a", "b"], lambda: [math.inf, 1.0]) == 1


def test_a_damaged_choice_is_made_again(tmp_path):
    store = Store(tmp_path)
    assert choose(store, "k", ["a", "b"], lambda: [1.0, 2.0]) == 0
    (entry,) = (store.directory / "tune").iterdir()
    entry.write_bytes(b"{}")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert choose(store, "k", ["a", "b"], lambda: [2.0, 1.0]) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_times_are_those_of_the_device(store):
    source = unary_kernel("x + 1.0", block=1024)
    launcher = Launcher(compile_kernel(source, Target.of(0), store), 0)
    x, out = torch.ones(1 << 24, device="cuda"), torch.zeros(1 << 24, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream

    def run(count: int) -> None:
        launcher.launch(count // 1024, 1, 1, stream, x, out, count)

    def broken() -> None:
        raise KernelError("does not fit")

    calls = [lambda: run(1 << 24), broken, lambda: run(1 << 20)]
    large, missing, small = time_candidates(calls, bytes_moved=1 << 27)
    assert missing == math.inf
    # 128 MiB at no more than 10 TB/s, and at no less than 0.1.
    assert (1 << 27) / 1e13 < large < (1 << 27) / 1e11
    assert small < large
    assert time_candidates([broken], bytes_moved=1) == [math.inf]
    assert time_candidates([calls[0]], bytes_moved=1 << 40, budget=0.001)[0] > 0
