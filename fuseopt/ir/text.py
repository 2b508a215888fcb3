"""Loop kernels as text, for people, for goldens and for `fuseopt show`.

    in0: bfloat16[128, 4096]
    out0: bfloat16[128, 4096]
    for r0 < 128 (row), c0 < 4096 (column):
        %0 = load in0[4096*r0 + c0]               bfloat16
        %1 = convert %0                           float32
        %2 = fold sum over c0 of %1               float32
        out0[4096*r0 + c0] = %3

Every line is one value; a value is printed once, before what uses it.
"""

from __future__ import annotations

import torch

from fuseopt.ir import dims
from fuseopt.ir.index import Atom, Axis, Index, Indirect, Quotient, Remainder
from fuseopt.ir.kernel import LoopKernel, Store, TensorParam
from fuseopt.ir.values import Apply, Convert, Coordinate, Fold, Load, Number, Round, Value

_COLUMN = 56  # where the dtypes of values stand


def kernel_text(kernel: LoopKernel) -> str:
    """Return a kernel as text; equal kernels have equal text."""
    names = {id(v): f"%{n}" for n, v in enumerate(kernel.values())}
    lines = [f"in{n}: {_param(p)}" for n, p in enumerate(kernel.inputs)]
    lines += [f"out{n}: {_param(p)}" for n, p in enumerate(kernel.outputs)]
    loops = [f"{a} < {a.extent} (row)" for a in kernel.rows]
    loops += [f"{a} < {a.extent} (column)" for a in kernel.columns]
    lines.append(f"for {', '.join(loops)}:" if loops else "once:")
    for value in kernel.values():
        text = f"    {names[id(value)]} = {_value(value, names)}"
        lines.append(f"{text:<{_COLUMN}}{_dtype(value.dtype)}")
    lines += [f"    {_store(s, names)}" for s in kernel.stores]
    return "\n".join(lines) + "\n"


def _param(param: TensorParam) -> str:
    text = f"{_dtype(param.dtype)}[{', '.join(map(str, param.shape))}]"
    if _is_contiguous(param):
        return text
    return f"{text} strides ({', '.join(map(str, param.strides))})"


def _is_contiguous(param: TensorParam) -> bool:
    expected: dims.Size = 1
    for size, stride in zip(reversed(param.shape), reversed(param.strides), strict=True):
        if size != 1 and not dims.same(stride, expected):
            return False
        expected = dims.multiply(expected, size)
    return True


def _value(value: Value, names: dict[int, str]) -> str:
    match value:
        case Load():
            place = f"in{value.param}[{index_text(value.index, names)}]"
            return f"load {place}{_where(value.guard, names)}"
        case Coordinate():
            return f"index {index_text(value.index, names)}"
        case Number():
            return f"constant {value.value}"
        case Apply():
            return f"{value.primitive} {', '.join(names[id(a)] for a in value.args)}"
        case Convert():
            return f"convert {names[id(value.arg)]}"
        case Round():
            return f"round {names[id(value.arg)]} to {_dtype(value.to)}"
        case Fold():
            over = ", ".join(map(str, value.over))
            return f"fold {value.combine} over {over} of {names[id(value.arg)]}"
        case _:
            raise AssertionError(f"{type(value).__name__} has no text")


def _store(store: Store, names: dict[int, str]) -> str:
    place = f"out{store.param}[{index_text(store.index, names)}]"
    assign = "+=" if store.partial else "="
    return f"{place} {assign} {names[id(store.value)]}{_where(store.guard, names)}"


def _where(guards: tuple[Value, ...], names: dict[int, str]) -> str:
    return f" where {' and '.join(names[id(g)] for g in guards)}" if guards else ""


def index_text(index: Index, names: dict[int, str]) -> str:
    """Return an index as people write it: "4096*r0 + c0 + 8"."""
    parts = [_term(_atom(atom, names), c) for atom, c in index.terms]
    if index.const != 0 or not parts:
        parts.append(str(index.const))
    return " + ".join(parts).replace("+ -", "- ")


def _term(atom: str, coefficient: dims.Size) -> str:
    if coefficient == 1:
        return atom
    text = str(coefficient)
    return f"({text})*{atom}" if " " in text else f"{text}*{atom}"


def _atom(atom: Atom, names: dict[int, str]) -> str:
    match atom:
        case Axis():
            return atom.name
        case Quotient():
            return f"(({index_text(atom.index, names)}) // {atom.divisor})"
        case Remainder():
            return f"(({index_text(atom.index, names)}) % {atom.divisor})"
        case Indirect():
            return names[id(atom.value)]


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
