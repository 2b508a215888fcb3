"""A jitted function made ready for the interpreter: plain Python that works on Triton's tensors.

    x = 1                    ->  x = __as_tensor__(1)
    for i in range(0, n):    ->  for i in __counter__(0, n):

Assigned numbers become tensors, as they do when compiled, and so do loop counters
(`tl.static_range` keeps Python numbers). The rewritten function lives in a copy of its module's
names, so that neither the kernel's module nor Triton's are changed.

Imports triton: import it only while interpreting.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock


@functools.cache
def rewritten(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function in the form that the interpreter runs."""
    lines, start = inspect.getsourcelines(function)
    tree = _Rewrite().visit(ast.parse(textwrap.dedent("".join(lines))))
    tree.body[0].decorator_list = []
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, start - 1)
    names = dict(function.__globals__)
    names["__as_tensor__"] = _as_tensor
    names["__counter__"] = _counter
    exec(compile(tree, function.__code__.co_filename, "exec"), names)
    return names[function.__name__]


class _Rewrite(ast.NodeTransformer):
    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        node.value = ast.Call(ast.Name("__as_tensor__", ast.Load()), [node.value], [])
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        loop = node.iter
        if isinstance(loop, ast.Call) and _is_range(loop.func):
            loop.func = ast.Name("__counter__", ast.Load())
        return node


def _is_range(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return function.attr == "range"
    return isinstance(function, ast.Name) and function.id == "range"


def _as_tensor(value: Any) -> Any:
    return stock.interpreter_semantic.to_tensor(value, False)


def _counter(first: Any, stop: Any = None, step: Any = 1, *_: Any, **__: Any) -> Iterator[Any]:
    """Count as `range` or `tl.range` does, in int64 if any bound is and in int32 otherwise."""
    bounds = (0, first, step) if stop is None else (first, stop, step)
    kinds = [b.dtype for b in bounds if isinstance(b, tl.tensor)]
    kind = tl.int64 if any(k.int_bitwidth == 64 for k in kinds) else tl.int32
    for number in range(*(int(b) for b in bounds)):
        data = np.array([number], dtype=stock._get_np_dtype(kind))
        yield tl.tensor(stock.TensorHandle(data, kind), kind)
