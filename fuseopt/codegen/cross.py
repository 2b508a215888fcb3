"""Several programs to a row: partial reductions meet in memory.

    program p of row x:  partials[x, p] = local sum;  arrive at x;  wait for all of x;  add them up

Rows longer than a program can hold are read once this way, and few rows fill the whole device.
Programs of a row have neighbouring numbers: devices start programs in the order of their numbers,
so that those a program waits for have started, or start as soon as one of an earlier row is done.
The scratch memory is zero when the kernel starts: an arrival count for each pass and row, then the
partial values. These are read past the first-level cache, which does not see what other programs
write. (Marking each value as written and polling for the marks was slower: 229 us where counting
arrivals took 179, rms_norm of 4096x32768 in bfloat16 on an H200.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fuseopt.codegen import spell
from fuseopt.codegen.passes import OnlineSoftmax, Pair
from fuseopt.ir.combine import COMBINES
from fuseopt.ir.values import Fold

if TYPE_CHECKING:
    from fuseopt.codegen.printer import Printer


class CrossProgram:
    """Emits the meeting of the programs that share a row."""

    def __init__(self, printer: Printer) -> None:
        self.printer = printer
        self.slots = 0
        self.passes = 0

    @property
    def rows(self) -> str:
        """The number of rows as an expression."""
        return spell.size(self.printer.schedule.outer_count)

    def take_place(self, wide: str) -> None:
        """Emit the row and part of this program."""
        line = self.printer.line
        line(f"row = (tl.program_id(0) // {self.printer.schedule.parts}){wide}")
        line(f"part = tl.program_id(0) % {self.printer.schedule.parts}")

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
        local = [text for _, text in singles] + [text for _, state in pairs for text in state]
        slots = [self._leave(text) for text in local]
        self._meet()
        gathered = [self._gather(slot) for slot in slots]
        for (fold, _), values in zip(singles, gathered, strict=False):
            values = self._filled(values, fold.combine)
            printer.assign_row(fold, COMBINES[fold.combine].spelling.format(values, "0"))
        for number, (pair, _) in enumerate(pairs):
            first = len(singles) + 2 * number
            self._combine_pair(pair, gathered[first], gathered[first + 1])

    def _combine_pair(self, pair: Pair, first: str, second: str) -> None:
        line, fresh = self.printer.line, self.printer.fresh
        if isinstance(pair, OnlineSoftmax):
            top, shift, total = fresh(), fresh(), fresh()
            tops, totals = self._filled(first, "max_number"), self._filled(second, "sum")
            line(f"{top} = tl.max({tops}, 0)")
            line(f'{shift} = tl.where({top} == float("-inf"), 0.0, {top})')
            line(f"{total} = tl.sum({totals} * _exp({tops} - {shift}), 0)")
            self.printer.pairs.finish(pair, top, total)
            return
        s = self.printer.schedule
        counts, center, away = fresh(), fresh(), fresh()
        means, aways = self._filled(first, "sum"), self._filled(second, "sum")
        left = f"{spell.size(s.inner_count)} - {self._lanes()} * {s.strips} * RBLOCK"
        line(f"{counts} = tl.maximum(tl.minimum({left}, {s.strips} * RBLOCK), 0)")
        line(f"{center} = tl.sum({means} * {counts}, 0) / {self.printer.number(pair.count)}")
        apart = f"({means} - {center})"
        line(f"{away} = tl.sum({aways} + {counts} * {apart} * {apart}, 0)")
        self.printer.pairs.finish(pair, center, away)

    # --- memory --------------------------------------------------------------------------------

    def _lanes(self) -> str:
        return f"tl.arange(0, {_pow2(self.printer.schedule.parts)})"

    def _leave(self, text: str) -> str:
        """Store one partial value of this program, and return the address of the row's values."""
        printer = self.printer
        parts = printer.schedule.parts
        if not self.slots:
            offset = f"{MOST_PASSES} * {self.rows}"
            printer.line(f"partials = (scratch + {offset}).to(tl.pointer_type(tl.float32))")
        base = printer.fresh("slot")
        printer.line(f"{base} = partials + ({self.slots} * {self.rows} + x) * {parts}")
        self.slots += 1
        printer.line(f'tl.store({base} + part, {text}, cache_modifier=".cg")')
        return base

    def _meet(self) -> None:
        printer = self.printer
        arrived, count = printer.fresh("arrived"), printer.schedule.parts
        address = f"scratch + {self.passes} * {self.rows} + x"
        self.passes += 1
        assert self.passes <= MOST_PASSES
        printer.line(f'{arrived} = tl.atomic_add({address}, 1, sem="acq_rel") + 1')
        printer.line(f"while {arrived} < {count}:")
        printer.line(f'    {arrived} = tl.atomic_add({address}, 0, sem="acquire")')

    def _gather(self, base: str) -> str:
        """All programs' values of one slot, as a small tile."""
        printer = self.printer
        parts, lanes = printer.schedule.parts, self._lanes()
        mask = "" if parts == _pow2(parts) else f", {lanes} < {parts}"
        name = printer.fresh()
        printer.line(f'{name} = tl.load({base} + {lanes}{mask}, cache_modifier=".cg")')
        return name

    def _filled(self, values: str, combine: str) -> str:
        """The gathered values, the identity in lanes that belong to no program."""
        parts = self.printer.schedule.parts
        if parts == _pow2(parts):
            return values
        identity = {"sum": "0.0"}.get(combine, 'float("-inf")')
        return f"tl.where({self._lanes()} < {parts}, {values}, {identity})"


MOST_PASSES = 4


def scratch_words(parts: int, rows: int, slots: int) -> int:
    """Return the number of 32-bit words of zeroed memory that a kernel of shared rows needs."""
    return (MOST_PASSES + slots * parts) * rows if parts > 1 else 0


def _pow2(count: int) -> int:
    return 1 << (count - 1).bit_length()
