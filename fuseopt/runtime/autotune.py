"""Timing the candidates of a kernel on the device, and remembering which one won."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Sequence

import torch

from fuseopt.errors import KernelError
from fuseopt.runtime.cache import Store

_FEWEST, _MOST = 5, 100


def time_candidates(
    calls: Sequence[Callable[[], object]], bytes_moved: int, budget: float = 0.02
) -> list[float]:
    """Return the median time of each call on the current CUDA device, in seconds.

    calls: functions without arguments that launch work on the current stream.
    bytes_moved: what one call reads and writes; when that is many times the L2 cache, the cache is
        not emptied between calls, since nothing of use survives in it.
    budget: seconds of device time for each candidate, within 5 and 100 repetitions.

    The candidates take turns, so that a change of clocks touches all of them alike. A call that
    raises `KernelError` when first tried takes infinitely long.
    """
    cache_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    scratch = None
    if bytes_moved < 8 * cache_bytes:
        scratch = torch.empty(2 * cache_bytes, dtype=torch.uint8, device="cuda")
    first = [_first_time(call, scratch) for call in calls]
    working = [i for i, seconds in enumerate(first) if seconds < math.inf]
    if not working:
        return first
    longest = max(first[i] for i in working)
    repetitions = max(_FEWEST, min(_MOST, int(budget / max(longest, 1e-6))))
    spans: dict[int, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {i: [] for i in working}
    for _ in range(repetitions):
        for i in working:
            spans[i].append(_record(calls[i], scratch))
    torch.cuda.synchronize()
    return [
        statistics.median(start.elapsed_time(end) * 1e-3 for start, end in spans[i])
        if i in spans
        else math.inf
        for i in range(len(calls))
    ]


def choose(
    store: Store,
    key: str,
    candidates: Sequence[str],
    measure: Callable[[], Sequence[float]],
) -> int:
    """Return the index of the fastest candidate, measuring only where no choice is remembered.

    key: what the choice depends on: kernel, shapes, device name; any text.
    candidates: a name for each, the same in every process (a digest of its source); a remembered
        choice counts only while the names are the same.
    measure: gives each candidate's time, as `time_candidates` does. When no candidate works
        `KernelError` is raised, and nothing is remembered.
    """
    assert candidates
    entry = hashlib.sha256(key.encode()).hexdigest()[:40]
    known = store.read_json("tune", entry)
    names = list(candidates)
    if isinstance(known, dict) and known.get("key") == key and known.get("candidates") == names:
        return names.index(known["choice"])
    times = list(measure())
    best = min(range(len(names)), key=times.__getitem__)
    if not times[best] < math.inf:
        raise KernelError(f"none of the {len(names)} candidates for {key} runs on this device")
    seconds = [t if t < math.inf else None for t in times]
    store.write_json(
        "tune",
        entry,
        {"key": key, "candidates": names, "choice": names[best], "seconds": seconds},
    )
    return best


def _first_time(call: Callable[[], object], scratch: torch.Tensor | None) -> float:
    """Run a call once to load it and once to time it; infinity if it cannot run."""
    try:
        call()
    except KernelError:
        return math.inf
    start, end = _record(call, scratch)
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3


def _record(
    call: Callable[[], object], scratch: torch.Tensor | None
) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    # Filling also keeps the device busy while the host enqueues the call, so that the span
    # between the events holds no waiting for the host.
    if scratch is not None:
        scratch.zero_()
    start.record()
    call()
    end.record()
    return start, end
