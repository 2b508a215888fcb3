"""The function that kernels draw random numbers by: `fuseopt.ir.philox` in Triton."""

from __future__ import annotations

from collections.abc import Iterable

from fuseopt.ir.philox import ROUNDS

_RANDOM_BITS = """

@triton.jit
def _random_bits(seed, index):
    \"\"\"Word index % 4 of the Philox block of the counter index // 4 and the key `seed`.\"\"\"
    index = tl.to_tensor(index)
    counter = (index >> 2).to(tl.int64)
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(seed.to(tl.int64), low, high, low * 0, low * 0, {rounds})
    lane = index & 3
    word = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    return word.to(tl.uint64).to(seed.dtype)
"""


def random_functions(lines: Iterable[str]) -> str:
    """Return the text of the function above where some statements call it."""
    if not any("_random_bits(" in line for line in lines):
        return ""
    return _RANDOM_BITS.replace("{rounds}", str(ROUNDS))
