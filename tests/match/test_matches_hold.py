"""A match is true: the pattern, called with the values it found, gives the root's value."""

from __future__ import annotations

import time
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from test_soundness import PROGRAMS, X, Y, run
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from fuseopt.graph.lift import is_free, lift
from fuseopt.match.find import Found, Search
from fuseopt.match.registry import default_registry
from fuseopt.match.subject import Subject

SLOWEST = 5.0  # seconds for one program on a busy machine; usual are hundredths


class _Values(fx.Interpreter):
    """Keeps the value of every node."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.values[n] = super().run_node(n)
        return self.values[n]


def holds(found: Found, values: dict[fx.Node, Any]) -> bool | None:
    """Whether a match is true; None where a value has no node, or lies along other axes."""
    match = found.match
    root = values[match.root]
    if match.axis != root.dim() - 1 or not match.is_exact:
        return None
    arguments: dict[str, Any] = {}
    for parameter in found.pattern.parameters:
        if parameter.kind == "absent":
            arguments[parameter.name] = None
        elif parameter.is_tensor:
            node = match.values[parameter.name]
            if node is None or not is_aligned(values[node], root):
                return None
            is_row = parameter.kind in ("row", "channel")
            arguments[parameter.name] = values[node].flatten() if is_row else values[node]
        else:
            arguments[parameter.name] = match.scalars[parameter.name]
    result = found.pattern.function(**arguments)
    result = result[0] if isinstance(result, tuple) else result
    return torch.allclose(result, root, rtol=1e-6, atol=1e-8)


def is_aligned(value: torch.Tensor, root: torch.Tensor) -> bool:
    shape = root.shape[root.dim() - value.dim() :] if value.dim() <= root.dim() else None
    return shape is not None and all(a in (b, 1) for a, b in zip(value.shape, shape, strict=True))


@given(program=PROGRAMS)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_matches_in_programs_hold(program):
    gm = make_fx(lambda x, y: run(program, x, y).clone(), pre_dispatch=True)(X, Y)
    gm.graph.eliminate_dead_code()
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and not is_free(n)]
    interpreter = _Values(gm)
    interpreter.run(X, Y)

    start = time.perf_counter()
    search = Search(Subject(nodes, lift(nodes)), default_registry())
    found = [f for root in search.subject.roots() for f in search.at(root, partly=False)]

    assert time.perf_counter() - start < SLOWEST
    for one in found:
        assert holds(one, interpreter.values) in (True, None), one.match
