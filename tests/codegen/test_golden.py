"""A few printed kernels to read, their numbers checked, and compiled for three architectures.

pytest tests/codegen/test_golden.py --update-goldens      # then read the difference
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from regions import Case, candidates, case, check, random

from fuseopt.codegen.generate import Candidate
from fuseopt.ops.dropout import KEEP
from fuseopt.runtime.compile import Target, compile_kernel
from fuseopt.runtime.resources import Resources, read_resources

FOLDER = Path(__file__).parents[1] / "golden"
HALF = torch.bfloat16


def residual_norm() -> Case:
    def function(x, residual, weight):
        h = x + residual
        return h, F.rms_norm(h, h.shape[-1:], weight)

    shape = (16, 4096)
    return case(function, *(random(*s, dtype=HALF) for s in (shape, shape, (4096,))))


def transposed_sum() -> Case:
    return case(lambda x, y: x.t() * 2 + y, random(100, 72), random(72, 100))


def rotary() -> Case:
    def function(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    tables = random(40, 64, dtype=HALF), random(40, 64, dtype=HALF, seed=1)
    return case(function, random(2, 3, 40, 64, dtype=HALF), *tables)


def long_softmax() -> Case:
    return case(lambda x: F.softmax(x, -1), random(2, 40000, dtype=HALF))


def long_logsumexp() -> Case:
    return case(lambda x: torch.logsumexp(x, -1), random(2, 40960, dtype=HALF))


def dropout_chain() -> Case:
    def function(x, bias, residual, seed):
        return F.gelu(x + bias) * KEEP(seed, list(x.shape), 0.1) * (1 / 0.9) + residual

    shapes = (16, 1024), (1024,), (16, 1024)
    return case(function, *(random(*s, dtype=HALF) for s in shapes), torch.tensor(1 << 40))


def norm_backward() -> Case:
    """dx, and dw as a sum over the rows."""

    def function(x, w, dy):
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        normal, g = wide * scale, dy.float() * w.float()
        dx = scale * (g - normal * (g * normal).mean(-1, keepdim=True))
        return dx.to(x.dtype), (dy.float() * normal).sum(0).to(w.dtype)

    shape = (600, 2048)
    return case(function, *(random(*s, dtype=HALF) for s in (shape, (2048,), shape)))


# Name: the case, the number of the candidate.
GOLDENS = {
    "residual_norm_resident": (residual_norm, 0),
    "transposed_sum_tiles": (transposed_sum, 0),
    "rotary_rows": (rotary, 0),
    "softmax_shared": (long_softmax, 2),
    "logsumexp_looped": (long_logsumexp, -1),
    "norm_backward_grouped": (norm_backward, 0),
    "dropout_chain": (dropout_chain, 0),
}


def golden(name: str, *, interpreted: bool) -> tuple[Case, Candidate]:
    make, number = GOLDENS[name]
    made = make()
    return made, candidates(made.kernel, {}, interpreted=interpreted)[number]


@pytest.mark.parametrize("name", GOLDENS)
def test_the_printed_kernel_is_the_golden_one(name, request):
    _, candidate = golden(name, interpreted=False)
    text = f"# {candidate.schedule.describe()}\n{candidate.source.text}"
    path = FOLDER / f"{name}.txt"

    if request.config.getoption("--update-goldens"):
        path.write_text(text)

    assert text == path.read_text(), "see --update-goldens"


@pytest.mark.parametrize("name", GOLDENS)
def test_its_numbers_are_right(name, store):
    check(*golden(name, interpreted=True), store)


def resources_of(candidate: Candidate, arch: int, store) -> Resources:
    return read_resources(compile_kernel(candidate.source, Target("cuda", arch), store))


def assert_lean(found: Resources, architecture: int) -> None:
    """No spilled registers and no local memory."""
    assert (found.spill_loads, found.spill_stores, found.stack_bytes) == (0, 0, 0), architecture


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("name", GOLDENS)
def test_it_compiles_without_spills_and_reads_16_bytes_at_a_time(name, arch, store):
    _, candidate = golden(name, interpreted=False)

    found = resources_of(candidate, arch, store)

    assert_lean(found, arch)
    assert found.widest_load == 16


DIGESTS = """
import sys
sys.path[:0] = sys.argv[1:]
import test_golden
print(*(test_golden.digests()))
"""


def digests() -> list[str]:
    """A digest of each golden kernel's region and source."""
    found = [golden(name, interpreted=False) for name in GOLDENS]
    return [f"{made.region.key}{candidate.source.digest}" for made, candidate in found]


def test_another_process_prints_the_same_kernels():
    """What the caches are keyed by must not depend on the order of sets."""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS, *folders],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == digests()
