"""How many rows of logits to hold at a time, and whether a head is worth doing so at all.

Memory. The original keeps logits, what the loss computes from them and gradients of both; in chunks
there are the logits and slopes of some rows, and the sum of the weight's gradient in float32.

Time. Matrix products are as many as before. What is more is that every chunk after the first reads
and writes the float32 sum; what is less is that logits are read once and not twice. The difference
in bytes, times the operations that a device does while it copies a byte, is put against the
products of the step: three for every linear layer, of which the graph may have many. GPUs from A100
to B200 do 160 to 260 16-bit operations a byte that they copy.
"""

from __future__ import annotations

from dataclasses import dataclass

SLOWER = 0.05  # how much longer a step may take
LEAST = 64 << 20  # bytes: less saved is not worth it
RATIO = 2.0  # the head's memory must become this much smaller
LEAST_CHUNK = 1024  # rows, from which on products run at full speed
UNIT = 128  # rows: tiles of a product have as many or divide it
PER_BYTE = {2: 250.0, 4: 60.0, 8: 20.0}  # operations of a product a byte copied, by item size


@dataclass(frozen=True, slots=True)
class HeadSize:
    """The sizes of a head.

    itemsize: of logits. loss_itemsize: of what the loss computes in between. kept: tensors of
    logits' size that a cap keeps. other: operations of the other products of a step.
    trains: whether any gradient is needed. of_weight: whether the weight's is.
    """

    rows: int
    classes: int
    features: int
    itemsize: int
    loss_itemsize: int
    kept: int = 0
    trains: bool = True
    of_weight: bool = True
    other: float = 0.0

    @property
    def logits(self) -> int:
        """How many."""
        return self.rows * self.classes

    @property
    def bytes_before(self) -> int:
        """Memory that the original takes at least, at its peak."""
        if not self.trains:  # what the loss reads, and its logarithm
            return 2 * self.logits * self.loss_itemsize
        # The logarithm is kept; its gradient and that of what it was taken of meet.
        return self.logits * (3 * self.loss_itemsize + self.kept * self.itemsize)

    def bytes_after(self, chunk: int) -> int:
        """Memory that chunks take at their peak."""
        held = chunk * self.classes * self.itemsize * (2 if self.trains else 1)
        return held + self._sum_bytes(chunk)

    def slower(self, chunk: int) -> float:
        """How much longer a step takes than without chunks, as a share of it, at most."""
        more = 2 * self._sum_bytes(chunk) * (self.chunks(chunk) - 1)
        less = self.logits * self.itemsize if self.trains else 0
        products = 2.0 * self.logits * self.features * (1 + 2 * self.trains)
        return (more - less) * PER_BYTE[self.itemsize] / (products + self.other)

    def chunks(self, chunk: int) -> int:
        """How many chunks of that many rows there are."""
        return -(-self.rows // chunk)

    def _sum_bytes(self, chunk: int) -> int:
        """The weight's gradient in float32, where the one that stays is not that itself."""
        needs = self.of_weight and self.itemsize < 4
        apart = needs or (self.of_weight and self.chunks(chunk) > 1)
        return self.classes * self.features * max(4, self.itemsize) if apart else 0


@dataclass(frozen=True, slots=True)
class Chunking:
    """A choice. rows: of a chunk. saved: bytes of memory. reason: why it does not pay, or ""."""

    rows: int
    saved: int
    reason: str = ""


def choose_chunk(size: HeadSize) -> Chunking:
    """Return the smallest chunk that costs little enough, and what speaks against it."""
    counts = range(size.rows // LEAST_CHUNK, 1, -1)
    chunks = [c for c in (_share(size.rows, n) for n in counts) if c < size.rows]
    fast = next((c for c in chunks if size.slower(c) <= SLOWER), None)
    if fast is None:
        if not chunks:
            reason = f"{size.rows} rows are less than two chunks of {LEAST_CHUNK}"
        else:
            least = chunks[-1]
            reason = f"chunks of {least} rows may make a step {size.slower(least):.0%} slower"
        return Chunking(asked_chunk(size.rows), 0, reason)
    before, after = size.bytes_before, size.bytes_after(fast)
    saved = before - after
    reason = ""
    if saved < LEAST or before < RATIO * after:
        reason = f"chunks would take {after / 1e6:.1f} MB of memory instead of {before / 1e6:.1f}"
    return Chunking(fast, saved, reason)


def _share(rows: int, count: int) -> int:
    """Rows of a chunk where there are so many chunks of about the same size."""
    return -(-rows // (count * UNIT)) * UNIT


def asked_chunk(rows: int) -> int:
    """Return the rows of a chunk where chunks are asked for and none pay: an eighth, rounded up."""
    unit = UNIT if rows >= 8 * UNIT else 16
    return -(-rows // (8 * unit)) * unit
