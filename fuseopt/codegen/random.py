"""The function that kernels draw random numbers by: `fuseopt.ir.philox` in Triton.

    random_bits(seed, 1024 * row + column)   ->   _random_bits(seed, row * 256 + (column >> 2),
                                                               column & 3)

Elements that share a block compute it once where the compiler sees that they do. Of a sum it does
not see it: what the block's size divides is therefore divided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fuseopt.ir.index import Index, divisible_part
from fuseopt.ir.philox import ROUNDS, WORDS
from fuseopt.ir.values import Apply, Coordinate, Value

_RANDOM_BITS = '''

@triton.jit
def _random_bits(seed, counter, lane):
    """Word `lane` of the Philox block of a counter and the key `seed`."""
    counter = tl.cast(counter, tl.int64)
    low, high = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(seed.to(tl.int64), low, high, low * 0, low * 0, {rounds})
    word = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    return word.to(tl.uint64).to(seed.dtype)
'''


def random_functions(lines: Iterable[str]) -> str:
    """Return the text of the function above where some statements call it."""
    if not any("_random_bits(" in line for line in lines):
        return ""
    return _RANDOM_BITS.replace("{rounds}", str(ROUNDS))


def draws_by_place(value: Value) -> bool:
    """Whether a value is random bits of a place that coordinates give."""
    return (
        isinstance(value, Apply)
        and value.primitive == "random_bits"
        and isinstance(value.args[1], Coordinate)
    )


def bits_by_place(seed: str, index: Index, spell: Callable[[Index], str]) -> str:
    """Return the expression of the random bits of a place."""
    whole, rest = divisible_part(index, WORDS)
    within = f"({spell(rest)})"
    counter = f"({within} >> 2)"
    if whole.terms or whole.const != 0:
        counter = f"({spell(whole)}) + {counter}"
    return f"_random_bits({seed}, {counter}, {within} & 3)"
