"""Whether a kernel pays: timed against the operations it replaces, on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from fuseopt.graph.seeded_dropout import with_native_dropout
from fuseopt.graph.unchecked import without_refusals
from fuseopt.graph.whole import make_whole
from fuseopt.ir import dims
from fuseopt.runtime.autotune import time_candidates
from fuseopt.runtime.cache import Store
from fuseopt.runtime.call import RegionKernel
from fuseopt.runtime.samples import draw_inputs

MARGIN = 1.03  # a kernel may be this much slower than what it replaces: noise, and one launch


def time_region(
    key: str,
    kernel: RegionKernel,
    reference: fx.GraphModule,
    sizes: Mapping[Any, int],
    size_inputs: list[int],
    store: Store,
) -> tuple[float, float]:
    """Return the seconds that a kernel takes and that its reference takes, remembered on disk.

    A reference that draws from seeds is timed with PyTorch's dropout in their place, and one with
    the pieces of a composite with the composite.
    """
    built = kernel.for_sizes([sizes[s] for s in kernel.symbols])
    entry = "-".join([key, *(s.digest for s in built.candidate.sources)])[:120]
    name = torch.cuda.get_device_name(kernel.device)
    known = store.read_json("profit", entry)
    if isinstance(known, dict) and known.get("device") == name:
        return float(known["ours"]), float(known["before"])
    native = with_native_dropout(reference)
    make_whole(native, lambda _: True)
    native = without_refusals(native)
    with torch.no_grad(), torch.cuda.device(kernel.device):
        generator = torch.Generator(kernel.device).manual_seed(0)
        inputs = draw_inputs(kernel.kernel, kernel.device, sizes, generator)
        given = [*inputs, *size_inputs]
        params = (*kernel.kernel.inputs, *kernel.kernel.outputs)
        moved = sum(dims.hint(p.distinct, dict(sizes)) * p.dtype.itemsize for p in params)
        values = [sizes[s] for s in kernel.symbols]
        calls = [
            _replayed(lambda: kernel(*inputs, *values)),
            _replayed(lambda: native(*given)),
        ]
        ours, before = time_candidates(calls, moved)
    store.write_json("profit", entry, {"device": name, "ours": ours, "before": before})
    return ours, before


def _replayed(call: Callable[[], object]) -> Callable[[], object]:
    """Capture a call in a CUDA graph, so that its time is the device's and not the host's."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        return call
    return graph.replay
