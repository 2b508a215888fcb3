"""Functions traced to ATen, and the rules found in them: what the tests of patterns share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from fuseopt.graph.lift import is_free, lift
from fuseopt.match.find import Search
from fuseopt.match.registry import Registry, default_registry
from fuseopt.match.rules import Match
from fuseopt.match.subject import Subject

Function = Callable[..., Any]


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of which only shape and dtype matter."""
    return torch.empty(shape, dtype=dtype)


X = tensor(2, 3, 16)
Y = tensor(2, 3, 16)
W = tensor(16)
B = tensor(16)
MASK = tensor(3, 16, dtype=torch.bool)
IMAGE = tensor(2, 8, 3, 4)
CW = tensor(8)
CB = tensor(8)
HALF = torch.bfloat16


@cache
def builtin_rules() -> Registry:
    return default_registry()


def trace(function: Function, *args: torch.Tensor, dynamic: bool = False) -> fx.GraphModule:
    """The functional ATen graph of a function. Equal tensors passed twice are two inputs."""

    def call(*given: torch.Tensor) -> Any:
        return function(*given)

    # Each example is a tensor of its own: make_fx takes one passed twice for one input.
    apart = [torch.empty_like(a) for a in args]
    mode = "symbolic" if dynamic else "fake"
    with torch.no_grad():
        gm = make_fx(call, tracing_mode=mode, pre_dispatch=True)(*apart)
    gm.graph.eliminate_dead_code()
    return gm


def subject_of(function: Function, *args: torch.Tensor, dynamic: bool = False) -> Subject:
    """What a function computes, as one region."""
    gm = trace(function, *args, dynamic=dynamic)
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and not _is_size(n)]
    computing = [n for n in nodes if not is_free(n)]
    return Subject(computing, lift(computing))


def _is_size(node: fx.Node) -> bool:
    return not isinstance(node.meta.get("val"), (torch.Tensor, tuple, list))


def matches(
    function: Function,
    *args: torch.Tensor,
    registry: Registry | None = None,
    dynamic: bool = False,
) -> list[Match]:
    """The matches in a function, the one that names it first; partial ones only if no other."""
    subject = subject_of(function, *args, dynamic=dynamic)
    search = Search(subject, registry or builtin_rules())
    return [found.match for found in search.all()]


def match_of(rule: str, function: Function, *args: torch.Tensor) -> Match:
    """The one match of a rule in a function, which covers what the function returns."""
    found = matches(function, *args)
    ours = [m for m in found if m.rule == rule]
    assert len(ours) == 1, f"found {[m.rule for m in found]} instead of {rule}"
    assert ours[0].is_exact
    return ours[0]


def rules_in(function: Function, *args: torch.Tensor) -> list[str]:
    """The names of the rules found in a function."""
    return [m.rule for m in matches(function, *args)]
