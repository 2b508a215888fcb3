"""Where a node comes from, in the user's own terms: module path, file and line, source text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import fx

from fuseopt.events import NodeInfo

_TORCH = str(Path(torch.__file__).parent)
_ENTRY = str(Path(__file__).with_name("capture.py"))  # where every captured call begins
# One frame of a formatted traceback: 'File "model.py", line 12, in forward' and the line below.
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*(?:\n[ \t]*([^\n]*))?')
# The steps of a source expression: .name, ._modules['name'], ["name"], [0].
_STEP = re.compile(r"\.(\w+)|\[['\"]?([^'\"\]]+)['\"]?\]")
_CONTAINERS = frozenset({"_modules", "_parameters", "_buffers", "__self__", "forward"})


class Frame(NamedTuple):
    """One line of user code."""

    path: str
    line: int
    code: str

    @property
    def location(self) -> str:
        """The line as reports name it: "file.py:123"."""
        return f"{Path(self.path).name}:{self.line}"


def node_info(node: fx.Node) -> NodeInfo:
    """Describe a node by what tracing recorded on it; what is unknown stays empty."""
    frame = user_frame(node.meta.get("stack_trace"))
    shape, dtype = value_text(node.meta.get("val"))
    return NodeInfo(
        name=node.name,
        op=_op_name(node),
        module=module_path(node),
        location=frame.location if frame else "",
        code=frame.code if frame else "",
        shape=shape,
        dtype=dtype,
    )


def module_path(node: fx.Node) -> str:
    """Return the dotted path of the innermost module a node was called in, "" for the root."""
    stack = node.meta.get("nn_module_stack")
    if not isinstance(stack, Mapping) or not stack:
        return ""
    innermost = list(stack.values())[-1]
    return dotted_path(innermost[0] if isinstance(innermost, tuple) else str(innermost))


def dotted_path(source: str) -> str:
    """Turn Dynamo's name of an attribute into the user's.

    `L['function'].__self__._modules['encoder'].layer[0]` -> `encoder.layer.0`
    """
    root = re.match(r"L\[['\"][^'\"]*['\"]\]|G\[['\"][^'\"]*['\"]\]", source)
    if root is None:
        return source
    steps = [a or b for a, b in _STEP.findall(source[root.end() :])]
    return ".".join(step for step in steps if step not in _CONTAINERS)


def user_frame(stack_trace: str | None) -> Frame | None:
    """Return the innermost frame outside torch of a formatted traceback."""
    return innermost(
        Frame(path, int(line), code.strip())
        for path, line, code in _FRAME.findall(stack_trace or "")
    )


def innermost(frames: Iterable[Frame]) -> Frame | None:
    """Return the last frame that is the user's; failing that, the last one that is torch's."""
    frames = [f for f in frames if f.path != _ENTRY]
    users = [f for f in frames if not f.path.startswith(_TORCH)]
    candidates = users or frames
    return candidates[-1] if candidates else None


def _op_name(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, str):
        return target
    return str(target) if hasattr(target, "_schema") else getattr(target, "__name__", str(target))


def tensor_text(value: torch.Tensor) -> str:
    """Return a tensor's dtype and shape as reports show them: "bfloat16[4, 1024]"."""
    shape, dtype = value_text(value)
    return f"{dtype}[{', '.join(shape)}]"


def value_text(value: Any) -> tuple[tuple[str, ...], str]:
    """Return shape and dtype of a value's first tensor, both empty where it has none."""
    if isinstance(value, (tuple, list)):
        value = next((v for v in value if isinstance(v, torch.Tensor)), None)
    if not isinstance(value, torch.Tensor):
        return (), ""
    return tuple(str(d) for d in value.shape), str(value.dtype).removeprefix("torch.")
