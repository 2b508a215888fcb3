"""Printing a kernel with totals: each program walks the rows of one group and keeps sums.

acc = 0
for row in group, group + groups, ...:
    what the kernel does with a row
    acc += what the row adds
partials[group] = acc
"""

from __future__ import annotations

from fuseopt.codegen import spell
from fuseopt.codegen.express import Body, Tile
from fuseopt.codegen.passes import plan_passes
from fuseopt.codegen.printer import Printer, is_direct
from fuseopt.ir import dims
from fuseopt.ir.combine import identity_of
from fuseopt.ir.kernel import Store
from fuseopt.ir.values import Load


class GroupPrinter(Printer):
    """Prints a kernel whose schedule has groups; each row is held whole.

    sums: the names of the running sums of each total, one for each tile or one in all.
    """

    sums: dict[int, list[str]]

    def run(self) -> Body:
        """Return the statements of the function."""
        s = self.schedule
        self._take_place()
        for strip in range(s.strips if s.inner else 0):
            self.resident.append(self._tile(self._strip_start(strip), strip))
        tiles = self.resident or [self.tile]
        for tile in self.resident:  # what all rows share is read once
            self.tile = tile
            self.compute(v for v in self.direct_loads() if not v.axes & self.outer_axes)
        partials = [store for store in self.kernel.stores if store.partial]
        self.sums = {store.param: self._start_sums(store, len(tiles)) for store in partials}
        self.line(f"row_tiles = tl.cdiv({spell.size(s.outer_count)}, XBLOCK)")
        if s.ahead:
            self._read_next("tl.minimum(group, row_tiles - 1)")  # sizes may leave a group empty
        self.line(f"for row_tile in range(group, row_tiles, {s.groups}):")
        self.indent += 1
        if s.ahead:
            self._take_next()
            self._read_next(f"tl.minimum(row_tile + {s.groups}, row_tiles - 1)")
        self._rows_of("row_tile")
        self._read_early()
        for walk in plan_passes(self.kernel, paired=False):
            self._pass(walk)
            if s.again:
                self._forget()
        self._finish()
        self.indent -= 1
        for store in partials:
            self._leave(store)
        return self.body

    def _take_place(self) -> None:
        """Emit which group, block and fixed point belong to this program."""
        s = self.schedule
        wide = ".to(tl.int64)" if s.wide_outer else ""
        self.line(f"program = tl.program_id(0){wide}")
        self.line(f"group = program % {s.groups}")
        rest = f"program // {s.groups}"
        if self._grid_over_inner():
            blocks = f"tl.cdiv({spell.size(s.inner_count)}, RBLOCK)"
            self.line(f"block = ({rest}) % {blocks}")
            rest = f"({rest}) // {blocks}"
        if s.fixed:
            self.line(f"point = {rest}")
            self._axis_variables(self.axis_names, "point", s.fixed)

    def _strip_start(self, strip: int) -> str:
        if self._grid_over_inner():
            return "block * RBLOCK + "
        return f"{strip} * RBLOCK + " if strip else ""

    # --- reading ahead -------------------------------------------------------------------------

    def _read_next(self, row_tile: str) -> None:
        """Emit the reads of an outer tile, under names that stay when the next one is read."""
        self._rows_of(row_tile, "y")
        for number, load in enumerate(self._row_loads()):
            for tile, name in self._places(load, f"next{number}"):
                self.tile = tile
                self.line(f"{name} = {self._load(load)}")
        self.outer_mask = ""

    def _take_next(self) -> None:
        """Emit names for what was read ahead: these are the values of the rows at hand."""
        for number, load in enumerate(self._row_loads()):
            for tile, name in self._places(load, f"next{number}"):
                known = tile.names if load.axes & self.inner_axes else self.row_names
                known[id(load)] = self.fresh()
                self.line(f"{known[id(load)]} = {name}")

    def _places(self, load: Load, name: str) -> list[tuple[Tile, str]]:
        if not load.axes & self.inner_axes:
            return [(Tile(), name)]
        return [(tile, f"{name}_{n}") for n, tile in enumerate(self.resident)]

    def _row_loads(self) -> list[Load]:
        return [v for v in self.kernel.loads() if v.axes & self.outer_axes and is_direct(v)]

    # --- sums ----------------------------------------------------------------------------------

    def _start_sums(self, store: Store, tiles: int) -> list[str]:
        """Emit a running sum for each tile, or one where a row adds the same in all tiles."""
        names = []
        dtype = store.value.dtype
        for _ in range(tiles if self._is_tiled(store) else 1):
            name = self.fresh("sum")
            zero = spell.number(identity_of("sum", dtype), dtype)
            kind = spell.triton_type(dtype)
            self.line(f"{name} = tl.full({self._sum_shape(store)}, {zero}, {kind})")
            names.append(name)
        return names

    def _sum_shape(self, store: Store) -> str:
        if self._is_tiled(store):
            return self.shape_of(self.outer_axes | self.inner_axes)
        if self.scalar_rows:
            return "()"
        return "[XBLOCK, 1]" if self.schedule.inner else "[XBLOCK]"

    def _is_tiled(self, store: Store) -> bool:
        return bool(store.axes & self.inner_axes)

    def store(self, store: Store) -> None:
        """Write a value that is computed, or add it to the sums."""
        if not store.partial:
            super().store(store)
            return
        tiled = self._is_tiled(store)
        place = self.resident.index(self.tile) if tiled else 0
        name = self.sums[store.param][place]
        masks = [self.outer_mask] if self.outer_mask else []
        masks += [self.tile.mask] if tiled and self.tile.mask else []
        text = self.typed(store.value)
        if masks:
            zero = spell.number(identity_of("sum", store.value.dtype), store.value.dtype)
            text = f"tl.where({' & '.join(masks)}, {text}, {zero})"
        self.line(f"{name} = {name} + {text}")

    def _leave(self, store: Store) -> None:
        """Emit the writing of a total's sums, one for each point that it keeps."""
        points = dims.product(a.extent for a in store.index.axes)
        base = f"partial{store.param} + group.to(tl.int64) * {spell.size(points)}"
        names = self.sums[store.param]
        if store.index.axes & self.inner_axes:
            for tile, name in zip(self.resident, names, strict=True):
                self.tile = tile
                text = name if self.scalar_rows else f"tl.sum({name}, 0)[None, :]"
                mask = f", {tile.mask}" if tile.mask else ""
                self.line(f"tl.store({self._address(base, store.index)}, {text}{mask})")
            return
        self.tile = Tile()
        text = " + ".join(names)
        two = bool(self.schedule.inner) and not self.scalar_rows
        if two:
            text = f"tl.sum(tl.sum({text}, 1), 0)"
        elif self._is_tiled(store) or not self.scalar_rows:
            text = f"tl.sum({text}, 0)"
        self.line(f"tl.store({self._address(base, store.index)}, {text})")
