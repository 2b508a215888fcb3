"""Which lengths rows of 16-bit elements should have, for matrix products at full speed."""

from __future__ import annotations

from typing import Any

import torch

HALVES = (torch.bfloat16, torch.float16)
UNIT = 8  # elements that a device loads at once
LINE = 64  # elements of a cache line, which long rows are made multiples of
LONG = 4096


def missing(size: Any) -> int:
    """Return how many elements a row of that many lacks to be aligned; 0 of a size that varies."""
    if not isinstance(size, int) or size % UNIT == 0:
        return 0
    return -size % (LINE if size >= LONG else UNIT)
