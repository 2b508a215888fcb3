"""bfloat16 and 8-bit floats as numpy arrays of their bits, and back, rounding to nearest even.

Formats are named as Triton names them: "bf16", "fp8e4nv" (torch.float8_e4m3fn), "fp8e5"
(torch.float8_e5m2). Values beyond the largest 8-bit number become that number, infinities too, as
the device's conversion instructions have it (`cvt.rn.satfinite`; PyTorch's own casts differ there).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Bits of the mantissa, exponent bias, codes of finite numbers, largest number.
_FP8 = {"fp8e4nv": (3, 7, 0x7F, 448.0), "fp8e5": (2, 15, 0x7C, 57344.0)}
_FP8_NAN = 0x7F


def decode(data: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the values of bits of the named format as float32; other arrays as they are."""
    if name == "bf16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    if name in _FP8:
        return _fp8_values(name)[data]
    return data


def encode(values: NDArray[Any], name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers as bits of the named format; for any other name cast them to `dtype`."""
    if name == "bf16":
        return _to_bf16(values.astype(np.float32))
    if name in _FP8:
        return _to_fp8(values.astype(np.float64), name)
    return values.astype(dtype)


def _to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _to_fp8(values: NDArray[np.float64], name: str) -> NDArray[np.uint8]:
    mantissa, bias, codes, largest = _FP8[name]
    size = np.minimum(np.abs(values), largest)
    _, exponent = np.frexp(size)  # size = m * 2**exponent with m in [0.5, 1)
    step = np.ldexp(1.0, np.maximum(exponent - 1, 1 - bias) - mantissa)
    size = np.minimum(np.rint(size / step) * step, largest)
    code = np.searchsorted(_fp8_values(name)[:codes], size).astype(np.uint8)
    code |= np.signbit(values).astype(np.uint8) << 7
    return np.where(np.isnan(values), np.uint8(_FP8_NAN), code)


@functools.cache
def _fp8_values(name: str) -> NDArray[np.float32]:
    mantissa, bias, codes, _ = _FP8[name]
    code = np.arange(128)
    exponent, fraction = code >> mantissa, (code & ((1 << mantissa) - 1)) / (1 << mantissa)
    normal = np.ldexp(1.0 + fraction, exponent - bias)
    values = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), normal)
    values[codes:] = np.nan
    if name == "fp8e5":
        values[codes] = np.inf
    return np.concatenate([values, -values]).astype(np.float32)
