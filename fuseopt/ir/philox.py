"""Random numbers from a seed and an index, the same wherever and whenever they are computed.

Number i of a seed is word i % 4 of the block that Philox-4x32 makes of the counter i // 4 and the
key `seed` (Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011). Four
neighbours share a block, which a compiler sees where a thread holds them.
"""

from __future__ import annotations

import torch

ROUNDS = 7  # the fewest with which the authors found no flaw by the BigCrush tests
WORDS = 4
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def random_bits(seed: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return 32 random bits for each index, as numbers from 0 to 2**32 - 1, in the seed's dtype.

    seed, index: integers of one dtype that broadcast. Narrower dtypes keep the low bits.
    """
    key, counter = seed.to(torch.int64), index.to(torch.int64)
    blocks = philox(key, counter >> 2)
    lane = counter & (WORDS - 1)
    even = torch.where(lane < 2, blocks[0], blocks[2])
    odd = torch.where(lane < 2, blocks[1], blocks[3])
    return torch.where((lane & 1) == 0, even, odd).to(seed.dtype)


def philox(key: torch.Tensor, counter: torch.Tensor, rounds: int = ROUNDS) -> list[torch.Tensor]:
    """Return the four words of the block of a 64-bit counter and a 64-bit key, as int64."""
    key, counter = torch.broadcast_tensors(key, counter)
    words = [*_halves(counter), torch.zeros_like(counter), torch.zeros_like(counter)]
    return philox_words(list(_halves(key)), words, rounds)


def philox_words(
    keys: list[torch.Tensor], words: list[torch.Tensor], rounds: int
) -> list[torch.Tensor]:
    """Return the four words that rounds of Philox make of a counter's four words."""
    keys = list(keys)
    for _ in range(rounds):
        # int64 products wrap around, which leaves the 64 bits of the unsigned product.
        low_0, high_0 = _halves(words[0] * _MULTIPLIERS[0])
        low_1, high_1 = _halves(words[2] * _MULTIPLIERS[1])
        words = [high_1 ^ words[1] ^ keys[0], low_1, high_0 ^ words[3] ^ keys[1], low_0]
        keys = [(k + step) & _MASK for k, step in zip(keys, _KEY_STEPS, strict=True)]
    return words


def _halves(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The low and the high 32 bits."""
    return value & _MASK, (value >> 32) & _MASK
