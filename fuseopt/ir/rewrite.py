"""Rebuilding a kernel's values with other indices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuseopt.ir.index import Axis, Index, Indirect, Quotient, Remainder
from fuseopt.ir.kernel import LoopKernel, Store
from fuseopt.ir.values import Apply, Convert, Coordinate, Fold, Load, Number, Round, Value, Values

OnTerms = Callable[[Index], Index]
OnAxes = Callable[[tuple[Axis, ...]], tuple[Axis, ...]]


def rewrite_indices(
    kernel: LoopKernel, rows: tuple[Axis, ...], columns: tuple[Axis, ...], on_terms: OnTerms
) -> LoopKernel:
    """Return the kernel, one without totals, over other axes.

    `on_terms` maps the plain axis terms of each index.
    """
    rebuilt = Rebuilt(columns, on_terms)
    for value in kernel.values():
        rebuilt.add(value)
    stores = tuple(rebuilt.store(s) for s in kernel.stores)
    return replace(kernel, rows=rows, columns=columns, stores=stores)


class Rebuilt:
    """Makes the values of a kernel anew, operands before users."""

    def __init__(self, columns: tuple[Axis, ...], on_terms: OnTerms) -> None:
        self.columns = columns
        self.on_terms = on_terms
        self.values = Values()
        self.done: dict[int, Value] = {}

    def add(self, value: Value) -> None:
        """Make a value anew."""
        self.done[id(value)] = self.value(value)

    def store(self, store: Store) -> Store:
        """Return a store of values that have been added."""
        guard = tuple(self.done[id(g)] for g in store.guard)
        index, value = self.index(store.index), self.done[id(store.value)]
        return replace(store, index=index, value=value, guard=guard)

    def index(self, index: Index) -> Index:
        """Return an index mapped."""
        plain = Index(index.const, tuple(t for t in index.terms if isinstance(t[0], Axis)))
        result = self.on_terms(plain)
        for atom, coefficient in index.terms:
            match atom:
                case Quotient(inner, divisor):
                    made: Index = Index(0, ((Quotient(self.index(inner), divisor), coefficient),))
                case Remainder(inner, divisor):
                    made = Index(0, ((Remainder(self.index(inner), divisor), coefficient),))
                case Indirect(value, extent):
                    made = Index(0, ((Indirect(self.done[id(value)], extent), coefficient),))
                case _:
                    continue
            result = result + made
        return result

    def value(self, value: Value) -> Value:
        """Return a value whose operands have been added, made anew."""
        match value:
            case Load(dtype=dtype, param=param, index=index, guard=guard):
                conditions = tuple(self.done[id(g)] for g in guard)
                return self.values.load(param, dtype, self.index(index), conditions)
            case Coordinate(index=index):
                return self.values.coordinate(self.index(index))
            case Number(dtype=dtype, value=number):
                return self.values.number(number, dtype)
            case Apply(primitive=name, args=args):
                return self.values.apply(name, *(self.done[id(a)] for a in args))
            case Convert(dtype=dtype, arg=arg):
                return self.values.convert(self.done[id(arg)], dtype)
            case Round(arg=arg, to=to):
                return self.values.round(self.done[id(arg)], to)
            case Fold(combine=combine, arg=arg):
                return self.values.fold(combine, self.done[id(arg)], self.columns)
            case _:
                raise AssertionError(f"unknown value {value}")


def all_indices(kernel: LoopKernel) -> list[Index]:
    """Return every index of a kernel, also those inside quotients and remainders."""
    found: list[Index] = []

    def visit(index: Index) -> None:
        found.append(index)
        for atom, _ in index.terms:
            if isinstance(atom, (Quotient, Remainder)):
                visit(atom.index)

    for value in kernel.values():
        if isinstance(value, (Load, Coordinate)):
            visit(value.index)
    for store in kernel.stores:
        visit(store.index)
    return found
