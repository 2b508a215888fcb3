"""What rotary embeddings are often computed with, where it comes to less than the op can do.

    angles = bmm(frequencies [n, d, 1], positions [n, 1, s])    ->   frequencies * positions
    both = cat([angles, angles], -1)                            ->   angles, read twice

The partitioner saves what matrix products and concatenations give; these it can compute again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fuseopt.graph.pieces import Pieces, composite, sizes, value_of
from fuseopt.ops.declare import T, sample

aten = torch.ops.aten


@composite("aten.bmm.default", samples=[sample(T((2, 3, 1)), T((2, 1, 4)))])
@composite("aten.mm.default", samples=[sample(T((3, 1)), T((1, 4)))])
def outer(p: Pieces, a: fx.Node, b: fx.Node) -> Any:
    """a * b where a has one column."""
    return p.mul(a, b) if sizes(a)[-1] == 1 else NotImplemented


@composite("aten.cat.default")
def repeat(p: Pieces, parts: list[fx.Node], dim: int = 0) -> Any:
    """A tensor several times along a dimension."""
    x = parts[0]
    if any(part is not x for part in parts):
        return NotImplemented
    rank = value_of(x).dim()
    dim %= rank
    shape = [p.size(x, d) for d in range(rank)]
    spread = [*shape[:dim], len(parts), *shape[dim:]]
    copied = p(aten.expand.default, p.unsqueeze(x, dim), spread)
    whole = p(aten.clone.default, copied, memory_format=torch.contiguous_format)
    return p.view(whole, [*shape[:dim], -1, *shape[dim + 1 :]])
