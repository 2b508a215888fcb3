"""Reading at indices that are themselves tensors: embeddings, indexing, gathers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuseopt.ir.expr import Expr, Gather, Pick
from fuseopt.ops.declare import Call, NotExpressible, T, op, sample

TABLE = T((7, 5))
IDS = T((2, 3), "i", 0, 7)


def _take(table: Expr, index: Expr, dim: int, *, wraps: bool) -> Expr:
    shape = (*table.shape[:dim], *index.shape, *table.shape[dim + 1 :])
    return table.arena.make(Gather, shape, table.dtype, table, index, dim, wraps)


@op("aten.embedding.default", form="index", samples=[sample(TABLE, IDS)])
def embedding(call: Call, table: Expr, ids: Expr, *_: Any) -> Expr:
    """Row ids[...] of a table; ids outside the table are an error in PyTorch."""
    return _take(table, ids, 0, wraps=False)


@op("aten.index_select.default", form="index", samples=[sample(TABLE, 1, T((4,), "i", 0, 5))])
def index_select(call: Call, table: Expr, dim: int, index: Expr) -> Expr:
    """Elements index[...] along a dimension."""
    if index.rank != 1 or table.rank == 0:
        raise NotExpressible("index_select with an index that is not a vector")
    return _take(table, index, dim % table.rank, wraps=False)


@op(
    "aten.index.Tensor",
    form="index",
    samples=[sample(TABLE, [IDS]), sample(T((2, 7, 3)), [None, T((4,), "i", -7, 7)])],
)
def index(call: Call, table: Expr, indices: Sequence[Expr | None]) -> Expr:
    """table[indices] with one integer tensor among the indices."""
    places = [d for d, i in enumerate(indices) if i is not None]
    if len(places) != 1:
        raise NotExpressible("indexing with several tensors")
    given = indices[places[0]]
    if given is None or given.dtype in (torch.bool, torch.uint8):
        raise NotExpressible("indexing with a mask: the size depends on the data")
    return _take(table, given, places[0], wraps=True)


@op("aten.gather.default", form="index", samples=[sample(TABLE, 1, T((7, 2), "i", 0, 5))])
def gather(call: Call, table: Expr, dim: int, ids: Expr, sparse_grad: bool = False) -> Expr:
    """Element ids[..] along a dimension, the other coordinates being the output's own."""
    if table.rank == 0:
        raise NotExpressible("gather of a number")
    return table.arena.make(Pick, ids.shape, table.dtype, table, ids, dim % table.rank)
