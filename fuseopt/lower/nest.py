"""The axes of a kernel as the lowering finds them: rows, the columns that reductions share, views.

A dimension that a view takes apart becomes several axes: `SplitAxis` is raised, the sizes of its
parts are noted in `extents`, and the lowering starts over.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuseopt.ir import dims
from fuseopt.ir.dims import Size
from fuseopt.ir.expr import Expr
from fuseopt.ir.index import Axis, Index, SplitAxis, mixed_radix
from fuseopt.ir.layout import align, covered, run_of


class NotLowerable(Exception):  # noqa: N818 - a verdict about a region, handled by selection
    """The expressions do not fit one loop nest. `code` is "different-axes" or "index"."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Nest:
    """The axes of one kernel.

    extents: the sizes of the axes that each dimension was taken apart into.
    columns: the axes that reductions run over, once there is one.
    visits: at which indices each expression, by its id, is computed.
    """

    def __init__(self, extents: dict[str, tuple[Size, ...]]) -> None:
        self.extents = extents
        self.axes: list[Axis] = []
        self.columns: tuple[Axis, ...] = ()
        self.visits: dict[int, list[tuple[Index, ...]]] = {}

    @property
    def rows(self) -> tuple[Axis, ...]:
        """The axes that are no columns."""
        return tuple(a for a in self.axes if a not in self.columns)

    def make_axes(self, kind: str, shape: Sequence[Size]) -> tuple[Index, ...]:
        """Make axes for the dimensions of a shape and return the index along each dimension."""
        found: list[Index] = []
        for number, extent in enumerate(shape):
            if extent == 1:
                found.append(Index())
                continue
            root = f"{kind}{number}"
            parts = self.extents.setdefault(root, (extent,))
            axes = [Axis(f"{root}_{place}", part) for place, part in enumerate(parts)]
            self.axes.extend(axes)
            found.append(mixed_radix(axes))
        return tuple(found)

    def place(self, output: Expr) -> tuple[Index, ...]:
        """Return where in an output each point of the axes writes."""
        for indices in self.visits.get(id(output), ()):
            if covered(indices, output.shape) is not None:
                return indices
        long = [s for s in output.shape if s != 1]
        for axes in (self.axes, self.rows):
            found = align(long, axes) if axes else None
            if found is not None:
                left = iter(found)
                return tuple(Index() if s == 1 else next(left) for s in output.shape)
        if not long:
            return (Index(),) * output.rank
        raise NotLowerable(
            "different-axes",
            f"an output of shape {dims.text(output.shape)} does not run along the others' axes",
        )

    def reduced_axes(self, extents: list[Size], kept: frozenset[Axis]) -> tuple[Index, ...]:
        """Return the index along the dimensions of a reduction that keeps some axes."""
        count = dims.product(extents)
        if not self.columns:
            idle = [a for a in self.axes if a not in kept]
            run = run_of(idle, count)
            if run is None:
                if idle:
                    raise NotLowerable(
                        "different-axes",
                        f"a reduction over {dims.text(extents)} is spread over axes of "
                        f"{dims.text([a.extent for a in idle])}",
                    )
                before = len(self.axes)
                made = self.make_axes("r", extents)
                self.columns = tuple(self.axes[before:])
                return made
            self.columns = run
        if kept & set(self.columns):
            raise NotLowerable("different-axes", "two reductions run over different axes")
        found = align(extents, self.columns)
        if found is None:
            raise NotLowerable(
                "different-axes",
                f"reductions over {dims.text(extents)} and over "
                f"{dims.text([a.extent for a in self.columns])} in one region",
            )
        return found


def split(extents: dict[str, tuple[Size, ...]], request: SplitAxis) -> None:
    """Take an axis apart, the inner part of the size that was asked for."""
    root, _, place = request.axis.name.rpartition("_")
    parts = list(extents[root])
    outer = dims.divide(request.axis.extent, request.inner)
    assert outer is not None
    parts[int(place) : int(place) + 1] = [outer, request.inner]
    extents[root] = tuple(parts)


def axes_in_order(index: Index) -> list[Axis]:
    """Return the axes of an index of one dimension, slowest first."""
    axes = [(a, c) for a, c in index.terms if isinstance(a, Axis)]
    reach: Size = 1
    found: list[Axis] = []
    while axes:
        following = next((a for a, c in axes if dims.same(c, reach)), None)
        if following is None:
            raise NotLowerable("index", "a sum over rows keeps a dimension that is taken apart")
        axes = [(a, c) for a, c in axes if a != following]
        found.insert(0, following)
        reach = dims.multiply(reach, following.extent)
    return found
