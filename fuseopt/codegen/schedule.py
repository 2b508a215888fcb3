"""A schedule: how a loop kernel is tiled and spread over programs."""

from __future__ import annotations

from dataclasses import dataclass

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.index import Axis


@dataclass(frozen=True, slots=True)
class Schedule:
    """One way of running a kernel.

    outer, inner: the axes of the two tile dimensions, slowest first; inner is empty when flat.
    outer_block, inner_block: tile size; an outer block of 1 makes outer coordinates scalars.
    strips: a resident row is held as this many tiles side by side.
    looped: the inner dimension is walked by a loop and read again for each pass instead.
    parts: so many programs share a row and combine their reductions through memory.
    again: each pass over a resident row computes anew from what was read, so that only that, in its
        own narrow dtype, stays in registers between passes.
    wide_outer, wide_inner: coordinates need 64 bits.
    registers: the most a thread may use, so that more programs run at a time; 0: no limit.
    groups: each program walks the outer tiles of one of so many groups and keeps sums on the way;
        0: one outer tile a program.
    fixed: axes that a program of a group has one point of.
    ahead: a program of a group reads its next rows before it works on those at hand.
    """

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    outer_block: int
    inner_block: int
    strips: int = 1
    looped: bool = False
    parts: int = 1
    again: bool = False
    wide_outer: bool = False
    wide_inner: bool = False
    num_warps: int = 4
    num_stages: int = 1
    registers: int = 0
    groups: int = 0
    fixed: tuple[Axis, ...] = ()
    ahead: bool = False

    @property
    def fixed_count(self) -> Size:
        """Points of the fixed axes."""
        return dims.product(a.extent for a in self.fixed)

    @property
    def outer_count(self) -> Size:
        """Points of the outer tile dimension."""
        return dims.product(a.extent for a in self.outer)

    @property
    def inner_count(self) -> Size:
        """Points of the inner tile dimension."""
        return dims.product(a.extent for a in self.inner)

    @property
    def width(self) -> int:
        """Points of the inner dimension that one program holds at a time."""
        return self.inner_block * self.strips

    def describe(self) -> str:
        """Return a short text for reports: "resident 4x1024, 8 warps"."""
        warps = f"{self.num_warps} warps"
        groups = f" in {self.groups} groups" if self.groups else ""
        groups += " read ahead" if self.ahead else ""
        if not self.inner:
            return f"flat {self.outer_block}{groups}, {warps}"
        kind = "looped" if self.looped else "tile"
        strips = f"x{self.strips}" if self.strips > 1 else ""
        parts = f" of {self.parts} parts" if self.parts > 1 else ""
        again = " recomputed" if self.again else ""
        limit = f", {self.registers} registers" if self.registers else ""
        tile = f"{self.outer_block}x{self.inner_block}{strips}"
        return f"{kind} {tile}{parts}{again}{groups}, {warps}{limit}"
