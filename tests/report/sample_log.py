"""Logs made by hand, as a model of repeated layers would leave them."""

from __future__ import annotations

from fuseopt.events import (
    FellBack,
    GraphBroken,
    GraphCaptured,
    KernelCompiled,
    Log,
    Measured,
    NodeInfo,
    NotFused,
    NotReplayed,
    Reason,
    RegionFused,
    RolledBack,
    Spliced,
    Timed,
    Verified,
)


def node(name: str, op: str, module: str = "", line: int = 1) -> NodeInfo:
    return NodeInfo(
        name, f"aten.{op}.default", module, f"model.py:{line}", "x = f(x)", ("4", "8"), "float32"
    )


def norm_region(number: int, key: str = "k1", graph: int = 0, rule: str = "") -> RegionFused:
    module = f"layers.{number}.norm"
    nodes = (
        node(f"add_{number}", "add", module, 10),
        node(f"ln_{number}", "layer_norm", module, 11),
    )
    return RegionFused(
        graph=graph,
        region=f"g{graph}r{number}",
        rule=rule,
        kernel="fused_add_layer_norm",
        key=key,
        nodes=nodes,
        inputs=("float32[4, 8]", "float32[4, 8]", "float32[8]"),
        outputs=("float32[4, 8]",),
        bytes_before=1000,
        bytes_after=600,
        launches_before=2,
        schedule="tile 1x8, 4 warps",
    )


def heavy(number: int, name: str = "up") -> NotFused:
    info = node(f"linear_{name}_{number}", "linear", f"layers.{number}.{name}", 20)
    return NotFused(
        0, (info,), Reason.HEAVY, "aten.linear.default stays with the vendor's kernel", info
    )


def near_miss(rule: str = "rms_norm") -> NotFused:
    culprit = node("sort_1", "sort", "layers.0", 30)
    return NotFused(
        0,
        (node("mean_1", "mean", "layers.0", 29), culprit),
        Reason.REJECTED,
        "the row is sorted before it is normalised",
        culprit,
        rule,
    )


def log_of(*events: object) -> Log:
    return Log(events=list(events))


def full_log() -> Log:
    """Every kind of event, a graph that runs and one that does not."""
    return log_of(
        GraphBroken("print is called", "model.py:5"),
        GraphCaptured(0, "inference", 40, 20),
        *(norm_region(n, rule="residual_norm") for n in range(3)),
        heavy(0),
        heavy(1),
        near_miss(),
        Verified("k1", True, "interpreter", 1e-7, 2e-7, 2e-6),
        Verified("k2", False, "interpreter", float("inf"), 0.0, 2e-6, "element [0, 1] is nan"),
        RolledBack(0, "k2", Reason.WRONG, "fused_mul disagrees with the operations it replaces"),
        Spliced(0, 17),
        Timed("grow", 0.2, 0),
        Timed("verify", 1.5, 0),
        GraphCaptured(1, "inference", 10, 6),
        norm_region(7, key="k3", graph=1),
        FellBack(1, Reason.NO_DEVICE, "no Triton device: runs on cpu"),
        Spliced(1, 5),
        NotReplayed(1, "it runs on cpu"),
        Timed("verify", 0.5, 1),
        Verified("graph:0", True, "first call", 1e-6, limit=1e-3),
        KernelCompiled("k1", "fused_add_layer_norm", "sm_90", 32, 0, 0, 128),
        Measured("a GPU", 2e-3, 1e-3),
    )
