"""What `ir.check` proves of a kernel, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from fuseopt.ir import dims
from fuseopt.ir.check import UnprovenError, check
from fuseopt.ir.index import Axis, Index, axis_index, indirect, quotient, remainder
from fuseopt.ir.kernel import LoopKernel, Store, TensorParam
from fuseopt.ir.values import Apply, Fold, Values

X = Axis("x", 16)
I = axis_index(X)  # noqa: E741 - the index along the only axis
S = dims.symbol("s")
MAKE = Values()
WHERE = MAKE.coordinate(I)


def number(value) -> object:
    return MAKE.number(value, torch.int64)


def compare(primitive: str, left, right):
    return MAKE.apply(primitive, left, right)


def vector(length, dtype=torch.float32) -> TensorParam:
    return TensorParam(dtype, (length,), (1,))


def copying(index: Index, *guard, length=8, store: Index = I, stored=16, axis=X, kept=()):
    """A kernel that copies element `index` of one vector, under a guard, to `store` of another."""
    value = MAKE.load(0, torch.float32, index, guard)
    written = Store(0, store, value, kept)
    return LoopKernel((axis,), (), (vector(length),), (vector(stored),), (written,))


def reducing(value) -> LoopKernel:
    """A kernel that stores one value at one place, its axis being a column."""
    return LoopKernel(
        (), (X,), (vector(16),), (vector(1, value.dtype),), (Store(0, Index(), value),)
    )


@pytest.mark.parametrize("index", [I, I * -1 + 15, Index(7), quotient(I, 4, split=False)])
def test_indices_inside_pass(index):
    check(copying(index, length=16))


@pytest.mark.parametrize("index", [I + 1, I * 2, I + -1, I * -1 + 14, Index(16), Index(-1)])
def test_indices_that_leave_the_tensor_are_refused(index):
    with pytest.raises(UnprovenError, match="load of input 0 may lie outside its 16 elements"):
        check(copying(index, length=16))


@pytest.mark.parametrize(
    ("index", "guard"),
    [
        (I, (compare("lt", WHERE, number(8)),)),
        (I, (compare("le", WHERE, number(7)),)),
        (I, (compare("gt", number(8), WHERE),)),
        (I, (compare("eq", WHERE, number(3)),)),
        (I + -8, (compare("ge", WHERE, number(8)),)),
        (I + -8, (compare("gt", WHERE, number(7)),)),
        (I + -8, (compare("le", number(8), WHERE),)),
        (I * -1 + 15, (compare("ge", WHERE, number(8)),)),
        (I + -4, (compare("ge", WHERE, number(4)), compare("lt", WHERE, number(12)))),
        (
            I + -4,
            (MAKE.apply("and", compare("ge", WHERE, number(4)), compare("lt", WHERE, number(12))),),
        ),
    ],
)
def test_a_guard_covers_what_it_keeps_in_bounds(index, guard):
    check(copying(index, *guard))

    with pytest.raises(UnprovenError):
        check(copying(index))


@pytest.mark.parametrize(
    "guard",
    [
        compare("lt", WHERE, number(9)),
        compare("le", WHERE, number(8)),
        compare("ge", WHERE, number(8)),
        compare("ne", WHERE, number(9)),
        compare("lt", MAKE.coordinate(I * -1), number(8)),
        MAKE.apply("or", compare("lt", WHERE, number(8)), compare("eq", WHERE, number(9))),
        MAKE.load(0, torch.bool, I),
    ],
)
def test_a_guard_that_does_not_cover_is_refused(guard):
    with pytest.raises(UnprovenError):
        check(copying(I, guard))


def test_a_guard_on_one_axis_bounds_a_sum_with_another():
    row = Axis("row", 3)
    index = axis_index(row) * 8 + I
    guard = compare("lt", WHERE, number(8))
    value = MAKE.load(0, torch.float32, index, (guard,))
    store = Store(0, axis_index(row) * 16 + I, value)

    def over(length):
        return LoopKernel((row, X), (), (vector(length),), (vector(48),), (store,))

    check(over(24))
    with pytest.raises(UnprovenError):
        check(over(23))


def test_symbolic_sizes_are_proved():
    axis = Axis("s", S)
    index = axis_index(axis)
    where = MAKE.coordinate(index)
    second_half = compare("ge", where, number(S - 1))

    check(copying(index, length=S, store=index, stored=S, axis=axis))
    check(copying(index + -(S - 1), second_half, length=1, store=index, stored=S, axis=axis))
    with pytest.raises(UnprovenError):
        check(copying(index + 1, length=S, store=index, stored=S, axis=axis))
    with pytest.raises(UnprovenError):
        check(copying(index, length=8, store=index, stored=S, axis=axis))


def test_stores_are_checked_like_loads():
    check(copying(Index(), store=I + -8, stored=8, kept=(compare("ge", WHERE, number(8)),)))
    with pytest.raises(UnprovenError, match="store to output 0"):
        check(copying(Index(), store=I + 1))


def test_an_index_from_memory_is_bounded_by_its_extent():
    read = MAKE.load(0, torch.int64, I)
    inside = MAKE.load(1, torch.float32, indirect(read, 5))
    beyond = MAKE.load(1, torch.float32, indirect(read, 6))

    def kernel(value):
        inputs = (vector(16, torch.int64), vector(5))
        return LoopKernel((X,), (), inputs, (vector(16),), (Store(0, I, value),))

    check(kernel(inside))
    with pytest.raises(UnprovenError):
        check(kernel(beyond))


def test_remainders_are_bounded_by_their_divisor():
    check(copying(remainder(I + 5, 8, split=False)))
    with pytest.raises(UnprovenError):
        check(copying(remainder(I + 5, 9, split=False)))


def test_a_strided_tensor_ends_at_its_last_element():
    spread = TensorParam(torch.float32, (4, 4), (8, 2))

    assert spread.span == 31
    assert TensorParam(torch.float32, (4, 4), (0, 1)).span == 4
    assert TensorParam(torch.float32, (4, 4), (0, 1)).distinct == 4
    assert TensorParam(torch.float32, (S, 4), (4, 1)).span == 4 * S


def test_operands_of_two_dtypes_are_refused():
    whole = MAKE.number(1, torch.int64)
    part = MAKE.number(1.0, torch.float32)
    mixed = Apply(torch.float32, frozenset(), "add", (part, whole))

    with pytest.raises(UnprovenError, match=r"add mixes torch\.float32, torch\.int64"):
        check(reducing(mixed))
    with pytest.raises(AssertionError, match="add does not take operands of"):
        MAKE.apply("add", part, whole)


def test_the_condition_of_where_is_not_an_operand_of_its_dtype():
    part = MAKE.number(1.0, torch.float32)
    check(reducing(MAKE.apply("where", MAKE.number(True, torch.bool), part, part)))


def test_a_result_of_another_dtype_is_refused():
    part = MAKE.number(1.0, torch.float32)

    with pytest.raises(UnprovenError, match=r"add of torch\.float32 gives torch\.float64"):
        check(reducing(Apply(torch.float64, frozenset(), "add", (part, part))))
    with pytest.raises(UnprovenError, match=r"sum of torch\.float32 gives torch\.int64"):
        check(reducing(Fold(torch.int64, frozenset(), "sum", part, (X,))))
    check(reducing(Apply(torch.bool, frozenset(), "lt", (part, part))))
