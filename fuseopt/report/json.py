"""The report as JSON: the same content as the printed one, with a version and a description.

`SCHEMA` is a JSON Schema (draft 2020-12). Fields are only added within a version; a field that is
removed or changes its meaning raises `VERSION`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import fuseopt
from fuseopt.events import GraphCaptured, NodeInfo, NotFused, Verified
from fuseopt.report.build import FusedRegion, Report

VERSION = 1

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_NUMBER = {"type": "number"}
_TEXTS = {"type": "array", "items": _TEXT}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_NODE = _object(
    name=_TEXT, op=_TEXT, module=_TEXT, location=_TEXT, code=_TEXT, shape=_TEXTS, dtype=_TEXT
)
_VERDICT = _object(
    passed={"type": "boolean"},
    how=_TEXT,
    error=_or_null(_NUMBER),
    eager_error=_or_null(_NUMBER),
    limit=_NUMBER,
    detail=_TEXT,
)
_COMPILED = _object(
    target=_TEXT,
    registers=_or_null(_COUNT),
    stack_bytes=_or_null(_COUNT),
    spills=_or_null(_COUNT),
    shared_bytes=_or_null(_COUNT),
    error=_TEXT,
)
_REGION = _object(
    id=_TEXT,
    graph=_COUNT,
    rule=_TEXT,
    kernel=_TEXT,
    key=_TEXT,
    running={"type": "boolean"},
    ops=_TEXTS,
    modules=_TEXTS,
    nodes=_list(_NODE),
    inputs=_TEXTS,
    outputs=_TEXTS,
    bytes_before=_COUNT,
    bytes_after=_COUNT,
    launches_before=_COUNT,
    launches_after=_COUNT,
    memory_saved=_COUNT,
    schedule=_TEXT,
    seconds=_NUMBER,
    seconds_before=_NUMBER,
    verified=_or_null(_VERDICT),
    compiled=_list(_COMPILED),
)
_REJECT = _object(
    graph=_COUNT,
    code=_TEXT,
    reason=_TEXT,
    rule=_TEXT,
    nodes=_list(_NODE),
    culprit=_or_null(_NODE),
)
_TOTALS = _object(
    graphs=_COUNT,
    graph_breaks=_COUNT,
    operations=_COUNT,
    launches_before=_COUNT,
    launches_after=_COUNT,
    bytes_before=_COUNT,
    bytes_after=_COUNT,
    regions=_COUNT,
    kernels=_COUNT,
    verified=_COUNT,
    rolled_back=_COUNT,
    fell_back=_COUNT,
)
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "fuseopt report",
    **_object(
        version={"const": VERSION},
        fuseopt=_TEXT,
        subject=_TEXT,
        totals=_TOTALS,
        regions=_list(_REGION),
        rejected=_list(_REJECT),
        graphs=_list(_object(graph=_COUNT, level=_TEXT, nodes=_COUNT, kernels_before=_COUNT)),
        graph_checks=_list(_object(graph=_COUNT, **_VERDICT["properties"])),
        graph_breaks=_list(_object(reason=_TEXT, location=_TEXT)),
        rolled_back=_list(
            _object(
                graph={"type": "integer"}, key=_TEXT, code=_TEXT, reason=_TEXT, source_path=_TEXT
            )
        ),
        fell_back=_list(_object(graph={"type": "integer"}, code=_TEXT, reason=_TEXT)),
        not_replayed=_list(_object(graph=_COUNT, reason=_TEXT)),
        measured=_or_null(_object(device=_TEXT, seconds_before=_NUMBER, seconds=_NUMBER)),
        seconds={"type": "object", "additionalProperties": _NUMBER},
    ),
}


def report_data(report: Report) -> dict[str, Any]:
    """Return a report as data that `SCHEMA` describes."""
    return {
        "version": VERSION,
        "fuseopt": fuseopt.__version__,
        "subject": report.subject,
        "totals": asdict(report.totals),
        "regions": [_region(r) for r in report.regions],
        "rejected": [_reject(r) for r in report.rejected],
        "graphs": [asdict(g) for g in report.of(GraphCaptured)],
        "graph_checks": [
            {"graph": int(v.key.partition(":")[2]), **_verdict(v)}
            for v in report.of(Verified)
            if v.key.startswith("graph:")
        ],
        "graph_breaks": [asdict(b) for b in report.graph_breaks],
        "rolled_back": [asdict(r) for r in report.rolled_back],
        "fell_back": [asdict(f) for f in report.fell_back],
        "not_replayed": [asdict(n) for n in report.not_replayed],
        "measured": asdict(report.measured) if report.measured is not None else None,
        "seconds": report.seconds,
    }


def _region(region: FusedRegion) -> dict[str, Any]:
    return {
        "id": region.region,
        "graph": region.graph,
        "rule": region.rule,
        "kernel": region.kernel,
        "key": region.key,
        "running": region.running,
        "ops": [n.op for n in region.nodes],
        "modules": list(region.modules),
        "nodes": _nodes(region.nodes),
        "inputs": list(region.inputs),
        "outputs": list(region.outputs),
        "bytes_before": region.bytes_before,
        "bytes_after": region.bytes_after,
        "launches_before": region.launches_before,
        "launches_after": region.launches_after,
        "memory_saved": region.memory_saved,
        "schedule": region.schedule,
        "seconds": region.seconds,
        "seconds_before": region.seconds_before,
        "verified": _verdict(region.verified) if region.verified is not None else None,
        "compiled": [
            {k: v for k, v in asdict(c).items() if k not in ("key", "kernel")}
            for c in region.compiled
        ],
    }


def _reject(reject: NotFused) -> dict[str, Any]:
    return {
        "graph": reject.graph,
        "code": reject.code.value,
        "reason": reject.reason,
        "rule": reject.rule,
        "nodes": _nodes(reject.nodes),
        "culprit": _nodes([reject.culprit])[0] if reject.culprit is not None else None,
    }


def _nodes(nodes: Sequence[NodeInfo]) -> list[dict[str, Any]]:
    return [{**asdict(n), "shape": list(n.shape)} for n in nodes]


def _verdict(verdict: Verified) -> dict[str, Any]:
    return {
        "passed": verdict.passed,
        "how": verdict.how,
        # JSON has no infinity: an error without bound is null.
        "error": _finite(verdict.error),
        "eager_error": _finite(verdict.eager_error),
        "limit": verdict.limit,
        "detail": verdict.detail,
    }


def _finite(number: float) -> float | None:
    return number if abs(number) < float("inf") else None
