"""Short forms of what repeats: module paths of equal layers, source lines, ops, shapes, sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from fuseopt.events import NodeInfo

_DTYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "b8",
}
_INDEX = re.compile(r"(?<!\w)\d+(?!\w)")  # a whole step of a path: not the 1 of "fc1"
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def shorten_paths(paths: Iterable[str]) -> list[str]:
    """Join module paths that differ in numbers, then those that differ in the last name only.

    layers.0.q_proj, layers.0.k_proj, layers.1.q_proj, layers.1.k_proj, norm
    ->  layers.0-1.{q_proj,k_proj}, norm

    Where several numbers vary and not in all combinations, those are written `*`.
    """
    templates: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    for path in dict.fromkeys(paths):
        template = tuple(_INDEX.split(path))
        numbers = tuple(map(int, _INDEX.findall(path)))
        templates.setdefault(template, []).append(numbers)
    return join_siblings(_fill(template, numbers) for template, numbers in templates.items())


def join_siblings(paths: Iterable[str]) -> list[str]:
    """Join dotted paths with the same parent: a.b, a.c -> a.{b,c}."""
    parents: dict[str, list[str]] = {}
    for path in paths:
        parent, dot, leaf = path.rpartition(".")
        # A path of several modules, or joined already, has no parent to share.
        whole = not dot or " " in path or path.endswith("}")
        parents.setdefault(path if whole else parent + dot, []).append("" if whole else leaf)
    return [
        parent + (leaves[0] if len(leaves) == 1 else "{" + ",".join(leaves) + "}")
        for parent, leaves in parents.items()
    ]


def _fill(template: tuple[str, ...], numbers: Sequence[tuple[int, ...]]) -> str:
    columns = [sorted(set(column)) for column in zip(*numbers, strict=True)]
    varying = [c for c in columns if len(c) > 1]
    together = len(varying) > 1 and all(_shifted(numbers, c) for c in range(len(columns)))
    loose = len(varying) > 1 and not together and _product(columns) != len(numbers)
    parts = ["*" if loose and len(c) > 1 else ranges(c) for c in columns]
    return "".join(a + b for a, b in zip(template, [*parts, ""], strict=True))


def _shifted(numbers: Sequence[tuple[int, ...]], column: int) -> bool:
    """Whether a column is constant or keeps its distance to the first, as in `0 + 1`, `1 + 2`."""
    constant = len({n[column] for n in numbers}) == 1
    return constant or len({n[column] - n[_first_varying(numbers)] for n in numbers}) == 1


def _first_varying(numbers: Sequence[tuple[int, ...]]) -> int:
    return next(i for i in range(len(numbers[0])) if len({n[i] for n in numbers}) > 1)


def _product(columns: Iterable[Sequence[int]]) -> int:
    total = 1
    for column in columns:
        total *= len(column)
    return total


def ranges(numbers: Iterable[int]) -> str:
    """Write whole numbers as ranges: 0, 1, 2, 5 -> "0-2,5"."""
    ordered = sorted(set(numbers))
    runs = groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])
    parts = []
    for _, run in runs:
        found = [n for _, n in run]
        parts.append(str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}")
    return ",".join(parts)


def region_place(nodes: Sequence[NodeInfo]) -> str:
    """Say where a region lies: its modules, without those that contain another of them."""
    modules = list(dict.fromkeys(n.module for n in nodes))
    inner = [m for m in modules if not any(_contains(m, other) for other in modules)]
    return " + ".join(join_siblings(inner)) or "the model itself"


def _contains(module: str, other: str) -> bool:
    return module != other and (not module or other.startswith(f"{module}."))


def source_lines(nodes: Iterable[NodeInfo]) -> str:
    """Join source locations: "model.py:12", "model.py:13" -> "model.py:12-13"."""
    lines: dict[str, set[int]] = {}
    for node in nodes:
        file, _, line = node.location.rpartition(":")
        if file:
            lines.setdefault(file, set()).add(int(line))
    return ", ".join(f"{file}:{ranges(found)}" for file, found in lines.items())


def short_op(op: str) -> str:
    """Return an op's plain name: "aten._to_copy.default" -> "to"."""
    name = op.split(".")[1] if op.count(".") >= 1 else op
    name = name.strip("_")
    return "to" if name == "to_copy" else name.removeprefix("native_")


def short_ops(nodes: Iterable[NodeInfo]) -> str:
    """Join the ops of a region, neighbours that are equal counted: "pow, mean, mul x2"."""
    runs = [(name, len(list(run))) for name, run in groupby(short_op(n.op) for n in nodes)]
    return ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in runs)


def short_tensor(text: str) -> str:
    """Shorten "bfloat16[1, 128, 4096]" to "bf16[1,128,4096]"."""
    dtype, bracket, shape = text.partition("[")
    return _DTYPES.get(dtype, dtype) + bracket + shape.replace(" ", "")


def short_tensors(texts: Iterable[str]) -> str:
    """Join the tensors of one side of a kernel, equal ones counted."""
    counts: dict[str, int] = {}
    for text in texts:
        short = short_tensor(text)
        counts[short] = counts.get(short, 0) + 1
    return ", ".join(t if n == 1 else f"{n}×{t}" for t, n in counts.items())


def byte_size(count: float) -> str:
    """Write a number of bytes in decimal units: "26.2 MB"."""
    for unit, name in _UNITS:
        if count >= unit:
            return (
                f"{count / unit:.3g} {name}"
                if count < 999.5 * unit
                else f"{count / unit:.0f} {name}"
            )
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Write a time in the unit that suits it: "12.3 us", "4.56 ms", "7.8 s"."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.2g} us"
