"""Random numbers by index: the published vectors, the lanes, and that the bits are even."""

from __future__ import annotations

import pytest
import torch

from fuseopt.ir.philox import philox, philox_words, random_bits

# Of the authors' own test program: counter, key, rounds, block.
ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
VECTORS = [
    ((0,) * 4, (0,) * 2, 7, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    ((0,) * 4, (0,) * 2, 10, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, 10, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (*PI, 10, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def numbers(values) -> list[torch.Tensor]:
    return [torch.tensor(v, dtype=torch.int64) for v in values]


@pytest.mark.parametrize(("counter", "key", "rounds", "block"), VECTORS)
def test_blocks_are_the_published_ones(counter, key, rounds, block):
    made = philox_words(numbers(key), numbers(counter), rounds)

    assert tuple(map(int, made)) == block


def test_four_neighbours_are_one_block():
    seed = torch.tensor(-(1 << 40) + 77)
    index = torch.arange(8) + (5 << 40)

    made = random_bits(seed, index)

    blocks = [philox(seed, (index[at] >> 2)) for at in (0, 4)]
    assert made.tolist() == [int(word) for block in blocks for word in block]


@pytest.mark.parametrize("place", [0, 31, 32, 40, 63])
def test_every_bit_of_the_seed_counts(place):
    index = torch.arange(64)
    seeds = torch.tensor([0, 1 << place if place < 63 else -(1 << 63)])

    one, other = (random_bits(s, index) for s in seeds)

    assert not torch.equal(one, other)


def test_indices_beyond_32_bits_differ():
    index = torch.arange(64)
    seed = torch.tensor(3)

    assert not torch.equal(random_bits(seed, index), random_bits(seed, index + (1 << 34)))


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
@pytest.mark.parametrize("along", ["index", "seed"])
def test_bytes_are_even(shift, along):
    """Chi-squared of 256 values, 65536 drawn: 255 on average, 400 once in 1e8 times."""
    counting, fixed = torch.arange(1 << 16), torch.tensor(11)
    drawn = random_bits(*((fixed, counting) if along == "index" else (counting, fixed)))

    counts = torch.bincount((drawn >> shift) & 255, minlength=256).double()

    assert 150 < float(((counts - 256) ** 2 / 256).sum()) < 400


def test_neighbours_are_independent():
    drawn = random_bits(torch.tensor(5), torch.arange(1 << 16)).double() / (1 << 32)

    for apart in (1, 2, 3, 4, 1024):
        pairs = torch.stack([drawn[:-apart], drawn[apart:]])
        assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.02
