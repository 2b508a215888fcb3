"""Scalar parameters while a pattern is recorded: numbers that remember their arithmetic."""

from __future__ import annotations

import struct
from typing import Any

from fuseopt.match import constants
from fuseopt.match.constants import Constant


class Scalar(float):
    """A scalar parameter during recording: remembers what was computed from it."""

    constant: Constant
    known: dict[float, Constant]

    @classmethod
    def of(cls, value: float, constant: Constant, known: dict[float, Constant]) -> Scalar:
        """Return a scalar whose value stands for a constant."""
        made = cls(value)
        made.constant, made.known = constant, known
        known[float(value)] = constant
        # Some composites round their numbers to float32 on the way.
        known[struct.unpack("f", struct.pack("f", value))[0]] = constant
        return made

    def _combined(self, value: float, constant: Constant) -> Scalar:
        return Scalar.of(value, constant, self.known)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return self._combined(
            float(self) + other, constants.plus(self.constant, constant_of(other))
        )

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return self._combined(
            float(self) * other, constants.times(self.constant, constant_of(other))
        )

    def __pow__(self, other: Any, _: Any = None) -> Any:
        return self._combined(float(self) ** other, constants.power(self.constant, float(other)))

    def __neg__(self) -> Any:
        return self * -1.0

    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, (int, float)) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return -self + other if isinstance(other, (int, float)) else NotImplemented

    def __truediv__(self, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        return self * (other**-1.0)

    def __rtruediv__(self, other: Any) -> Any:
        return self**-1.0 * other if isinstance(other, (int, float)) else NotImplemented

    __radd__ = __add__
    __rmul__ = __mul__
    __hash__ = float.__hash__


def constant_of(value: Any) -> Constant:
    """Return the constant that a number of a pattern stands for."""
    return value.constant if isinstance(value, Scalar) else float(value)
