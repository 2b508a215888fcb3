"""Several programs to a row: partial reductions meet in memory.

    program p of row x:  partials[x, p] = local sum;  arrive at x;  wait for all of x;  add them up

Rows longer than a program can hold are read once this way, and few rows fill the whole device.
Programs take their place in the order in which they start (a ticket), so that those a program
waits for have started before it or need nothing from it: no order of dispatch can block them.
The scratch memory is zero when the kernel starts: a ticket, an arrival count for each row and
pass, then the partial values. It is read past the first-level cache, which does not see the writes
of other programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fuseopt.codegen import spell
from fuseopt.codegen.passes import Moments, OnlineSoftmax, Pair
from fuseopt.ir.combine import COMBINES
from fuseopt.ir.values import Fold

if TYPE_CHECKING:
    from fuseopt.codegen.printer import _Printer


class CrossProgram:
    """Emits the meeting of the programs that share a row."""

    def __init__(self, printer: _Printer) -> None:
        self.printer = printer
        self.passes = 0
        self.slots = 0

    @property
    def rows(self) -> str:
        """The number of rows as an expression."""
        return spell.size(self.printer.schedule.outer_count)

    def take_ticket(self, wide: str) -> None:
        """Emit the row and part of this program."""
        line = self.printer.line
        line("ticket = tl.atomic_add(scratch, 1)")
        line(f"row = (ticket // {self.printer.schedule.parts}){wide}")
        line(f"part = ticket % {self.printer.schedule.parts}")

    def own_count(self, dtype: torch.dtype) -> str:
        """How many elements of the row this program holds, as a float."""
        s = self.printer.schedule
        left = f"{spell.size(s.inner_count)} - part * {s.strips} * RBLOCK"
        return f"tl.minimum({left}, {s.strips} * RBLOCK).to({spell.triton_type(dtype)})"

    def combine(
        self, singles: Sequence[tuple[Fold, str]], pairs: Sequence[tuple[Pair, tuple[str, str]]]
    ) -> None:
        """Emit the exchange of one pass: every program leaves with the values of the whole row."""
        printer = self.printer
        slots: dict[str, str] = {}
        local = [text for _, text in singles] + [text for _, state in pairs for text in state]
        for text in local:
            slots[text] = self._leave(text)
        self._meet()
        for fold, text in singles:
            parts = self._gather(slots[text], fold.combine)
            printer.assign_row(fold, COMBINES[fold.combine].spelling.format(parts, "0"))
        for pair, state in pairs:
            self._combine_pair(pair, slots[state[0]], slots[state[1]])

    def _combine_pair(self, pair: Pair, first: str, second: str) -> None:
        printer = self.printer
        a, b = self._gather(first, "max_number"), self._gather(second, "sum")
        if isinstance(pair, OnlineSoftmax):
            top, shift, total = printer.fresh(), printer.fresh(), printer.fresh()
            printer.line(f"{top} = tl.max({a}, 0)")
            printer.line(f'{shift} = tl.where({top} == float("-inf"), 0.0, {top})')
            printer.line(f"{total} = tl.sum({b} * tl.exp({a} - {shift}), 0)")
            printer.finish_pair(pair, top, total)
            return
        assert isinstance(pair, Moments)
        s = printer.schedule
        counts, center, away = printer.fresh(), printer.fresh(), printer.fresh()
        left = f"{spell.size(s.inner_count)} - tl.arange(0, {_pow2(s.parts)}) * {s.strips} * RBLOCK"
        printer.line(f"{counts} = tl.maximum(tl.minimum({left}, {s.strips} * RBLOCK), 0)")
        held = f"tl.where({counts} > 0, {a}, 0.0)"
        width = f"{printer.number(pair.count)}"
        printer.line(f"{center} = tl.sum({held} * {counts}, 0) / {width}")
        spread = f"({held} - {center})"
        printer.line(f"{away} = tl.sum({b}, 0) + tl.sum({counts} * {spread} * {spread}, 0)")
        printer.finish_pair(pair, center, away)

    # --- memory --------------------------------------------------------------------------------

    def _leave(self, text: str) -> str:
        """Store one partial value of this program, and return the address of the row's values."""
        printer = self.printer
        parts = printer.schedule.parts
        slot = self.slots
        self.slots += 1
        base = f"partials + ({slot} * {self.rows} + x) * {parts}"
        if not slot:
            # The passes before may not be known yet: space for four, and the ticket, comes first.
            printer.line(
                f"partials = (scratch + 1 + {MOST_PASSES} * {self.rows})"
                ".to(tl.pointer_type(tl.float32))"
            )
        printer.line(f"tl.store({base} + part, {text})")
        return base

    def _meet(self) -> None:
        printer = self.printer
        number = self.passes
        self.passes += 1
        assert self.passes <= MOST_PASSES
        arrived = printer.fresh("arrived")
        address = f"scratch + 1 + {number} * {self.rows} + x"
        printer.line("tl.debug_barrier()")
        printer.line(f'{arrived} = tl.atomic_add({address}, 1, sem="acq_rel") + 1')
        printer.line(f"while {arrived} < {printer.schedule.parts}:")
        printer.line(f'    {arrived} = tl.atomic_add({address}, 0, sem="acquire")')
        printer.line("tl.debug_barrier()")

    def _gather(self, base: str, combine: str) -> str:
        """All programs' values of one slot, as a small tile."""
        printer = self.printer
        parts = printer.schedule.parts
        name = printer.fresh()
        lanes = f"tl.arange(0, {_pow2(parts)})"
        mask = "" if parts == _pow2(parts) else f", {lanes} < {parts}, other={_filler(combine)}"
        printer.line(f'{name} = tl.load({base} + {lanes}{mask}, cache_modifier=".cg")')
        return name


MOST_PASSES = 4


def scratch_words(parts: int, rows: int, slots: int) -> int:
    """Return the number of 32-bit words of zeroed memory that a kernel of shared rows needs."""
    return 1 + MOST_PASSES * rows + slots * rows * parts if parts > 1 else 0


def _pow2(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _filler(combine: str) -> str:
    return {"sum": "0.0", "prod": "1.0", "min": 'float("inf")'}.get(combine, 'float("-inf")')
