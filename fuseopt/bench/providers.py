"""Who runs a row of the benchmark: PyTorch as it is, its compiler, fuseopt, and other libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import fuseopt
from fuseopt.bench.rows import Row
from fuseopt.events import Log, RegionFused

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Provider:
    """One way of running rows.

    make: returns the function for a row, None where there is none. describe: what it did.
    """

    name: str
    make: Callable[[Row], Function | None]
    describe: Callable[[Function], str] = lambda _: ""


def _eager(row: Row) -> Function:
    return row.function


def _fuseopt(row: Row) -> Function:
    return fuseopt.optimize(row.function)


def _schedules(function: Function) -> str:
    log: Log = function.log  # type: ignore[attr-defined]
    return "; ".join(e.schedule for e in log.of(RegionFused))


def _inductor(row: Row) -> Function:
    # A static graph for each shape, as a user who compiles for one shape would have.
    compiled: Function = torch.compile(row.function, dynamic=False)
    return compiled


def _inductor_max(row: Row) -> Function:
    mode = "max-autotune-no-cudagraphs"
    compiled: Function = torch.compile(row.function, dynamic=False, mode=mode)
    return compiled


def _aten(row: Row) -> Function | None:
    if row.family == "rms_norm":
        return lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6)
    return None


def _liger(row: Row) -> Function | None:
    if row.family == "rms_norm":
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        return lambda x, w: LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", False)
    if row.family == "layer_norm":
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        return lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, 1e-5)
    if row.family == "softmax":
        from liger_kernel.ops.softmax import LigerSoftmaxFunction

        return lambda x: LigerSoftmaxFunction.apply(x)
    if row.family == "add_rms_norm":
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

        def add_rms_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
            y, s = LigerFusedAddRMSNormFunction.apply(x, r, w, 1e-6, 0.0, "llama", False)
            return s, y

        return add_rms_norm
    if row.family == "ce":
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

        return lambda x, t: LigerCrossEntropyFunction.apply(x.clone(), t, None)[0]
    return None


def _quack(row: Row) -> Function | None:
    if row.family == "rms_norm":
        from quack.rmsnorm import rmsnorm

        return lambda x, w: rmsnorm(x, w, eps=1e-6)
    if row.family == "layer_norm":
        from quack.layernorm import layernorm

        return lambda x, w, b: layernorm(x, w.float(), eps=1e-5)
    if row.family == "softmax":
        from quack.softmax import softmax

        return lambda x: softmax(x)
    if row.family == "ce":
        from quack.cross_entropy import cross_entropy

        return lambda x, t: cross_entropy(x, t, reduction="mean")
    return None


PROVIDERS: dict[str, Provider] = {
    p.name: p
    for p in (
        Provider("eager", _eager),
        Provider("fuseopt", _fuseopt, _schedules),
        Provider("inductor", _inductor),
        Provider("inductor-max", _inductor_max),
        Provider("aten", _aten),
        Provider("liger", _liger),
        Provider("quack", _quack),
    )
}
