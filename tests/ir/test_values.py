"""Values are made once: what is equal is one object, what differs is not."""

from __future__ import annotations

import math

import pytest
import torch

from fuseopt.ir.expr import Arena, apply, broadcast_shapes
from fuseopt.ir.expr import walk as walk_exprs
from fuseopt.ir.index import Axis, Index, axis_index, indirect
from fuseopt.ir.values import Coordinate, Number, Values, index_values, walk

ROW, COLUMN = Axis("row", 4), Axis("column", 8)
AT = axis_index(ROW) * 8 + axis_index(COLUMN)


@pytest.fixture
def make() -> Values:
    return Values()


def test_a_tensor_read_twice_at_the_same_index_is_one_load(make):
    assert make.load(0, torch.float32, AT) is make.load(0, torch.float32, AT)
    assert make.load(0, torch.float32, AT) is not make.load(0, torch.float32, AT + 1)
    assert make.load(0, torch.float32, AT) is not make.load(1, torch.float32, AT)


def test_a_guarded_load_is_another_load(make):
    guard = make.apply("lt", make.coordinate(AT), make.number(9, torch.int64))

    assert make.load(0, torch.float32, AT) is not make.load(0, torch.float32, AT, (guard,))


@pytest.mark.parametrize(
    ("one", "other"), [(0.0, -0.0), (1, 1.0), (1, True), (0, False), (math.nan, 0.0)]
)
def test_numbers_that_compare_equal_are_not_the_same_constant(make, one, other):
    assert make.number(one, torch.float32) is not make.number(other, torch.float32)
    assert Arena().const(0.0, torch.float32) is not Arena().const(0.0, torch.float32)


def test_equal_numbers_are_one_constant(make):
    assert make.number(math.nan, torch.float32) is make.number(math.nan, torch.float32)
    assert make.number(2.0, torch.float32) is make.number(2.0, torch.float32)
    assert make.number(2.0, torch.float32) is not make.number(2.0, torch.float64)


def test_a_value_varies_along_the_axes_of_what_it_is_made_of(make):
    load = make.load(0, torch.float32, AT)
    total = make.fold("sum", load, (COLUMN,))
    per_row = make.load(1, torch.int64, axis_index(ROW))

    assert load.axes == {ROW, COLUMN}
    assert total.axes == {ROW}
    assert make.apply("mul", load, total).axes == {ROW, COLUMN}
    assert make.number(1.0, torch.float32).axes == frozenset()
    assert make.load(2, torch.float32, indirect(per_row, 5)).axes == {ROW}


def test_a_guard_adds_its_axes_to_a_load(make):
    guard = make.apply("lt", make.coordinate(axis_index(COLUMN)), make.number(3, torch.int64))

    assert make.load(0, torch.float32, axis_index(ROW), (guard,)).axes == {ROW, COLUMN}


def test_arithmetic_on_coordinates_is_index_arithmetic(make):
    i, j = (make.coordinate(axis_index(a)) for a in (ROW, COLUMN))
    eight = make.number(8, torch.int64)

    flat = make.apply("add", make.apply("mul", i, eight), j)

    assert flat is make.coordinate(AT)
    assert make.apply("sub", flat, j) is make.coordinate(axis_index(ROW) * 8)
    assert isinstance(make.apply("sub", i, i), Number)
    assert not isinstance(make.apply("mul", i, j), Coordinate)


def test_a_constant_index_is_a_number(make):
    assert make.coordinate(Index(5)) is make.number(5, torch.int64)


def test_a_conversion_to_the_same_dtype_is_none(make):
    load = make.load(0, torch.float32, AT)

    assert make.convert(load, torch.float32) is load
    assert make.convert(load, torch.float64).dtype == torch.float64
    assert make.round(load, torch.bfloat16).dtype == torch.float32


def test_operands_come_before_users_and_once(make):
    load = make.load(0, torch.float32, AT)
    double = make.apply("add", load, load)
    result = make.apply("mul", double, load)

    assert walk([result, double]) == [load, double, result]


def test_what_an_index_reads_from_memory_is_an_operand(make):
    ids = make.load(0, torch.int64, axis_index(ROW))
    row = make.load(1, torch.float32, indirect(ids, 7) * 8 + axis_index(COLUMN))

    assert index_values(row.index) == (ids,)
    assert walk([row]) == [ids, row]


def test_a_primitive_of_the_wrong_arity_is_refused(make):
    load = make.load(0, torch.float32, AT)

    with pytest.raises(AssertionError, match="add does not take"):
        make.apply("add", load)


def test_equal_expressions_of_an_arena_are_one_object():
    arena = Arena()
    x = arena.input(0, (4, 8), torch.float32)

    assert x + 1.0 is x + 1.0
    assert x + 1.0 is not 1.0 + x
    assert apply("mul", x, 0.0) is not apply("mul", x, -0.0)
    assert (x < 1.0).dtype == torch.bool
    assert [type(e).__name__ for e in walk_exprs([x + 1.0])] == ["Input", "Const", "Map"]


def test_numbers_take_the_dtype_of_what_they_meet():
    x = Arena().input(0, (4,), torch.int64)

    assert (x + 2.7).operands[1].value == 2
    with pytest.raises(AssertionError, match="of numbers alone has no dtype"):
        apply("add", 1.0, 2.0)


def test_shapes_broadcast_as_in_pytorch():
    assert broadcast_shapes([(4, 1), (8,)]) == (4, 8)
    assert broadcast_shapes([(), (2, 1, 3)]) == (2, 1, 3)
    with pytest.raises(ValueError, match="do not broadcast"):
        broadcast_shapes([(4,), (8,)])
