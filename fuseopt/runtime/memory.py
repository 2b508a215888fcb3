"""How much memory of a device is free."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a device; of the CPU, what a process may still take."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        text = Path("/proc/meminfo").read_text()
        (line,) = (n for n in text.splitlines() if n.startswith("MemAvailable:"))
        free = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(free, _allowed())


def _allowed() -> int:
    """The bytes of address space that are left to this process (`ulimit -v`)."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return 1 << 62
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return max(0, limit - used)
