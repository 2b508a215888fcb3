"""The rows that `fuseopt bench --kernels` times: a function, its inputs, the bytes it must move.

Those bytes are what no implementation avoids: every distinct input read once, every output written
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fuseopt.bench.functions import (
    adaln,
    add_layer_norm,
    add_rms_norm,
    bias_gelu,
    bias_gelu_dropout_add,
    bn_relu_eval,
    cross_entropy,
    dequant_add,
    emb_ln,
    geglu_tanh,
    gn_silu,
    gpt2_new_gelu,
    layer_norm,
    layer_scale_add,
    masked_softmax,
    mul_add_relu,
    quant_int8,
    rms_norm,
    rms_quant_fp8,
    rope,
    softcap_softmax,
    softmax,
    softmax_dim1,
    swiglu,
)

Make = Callable[["Draw"], tuple[Any, ...]]


@dataclass(slots=True)
class Draw:
    """Makes the inputs of a row on one device, in one dtype, reproducibly."""

    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(0)

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return normally distributed numbers."""
        made = torch.randn(shape, generator=self.generator, device=self.device)
        return made.to(dtype or self.dtype)

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Return whole numbers in [0, high)."""
        made = torch.randint(0, high, shape, generator=self.generator, device=self.device)
        return made.to(dtype)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the benchmark.

    name: as in the tables. function: called with what `make` returns. bytes_forward,
    bytes_backward: compulsory traffic for elements of `itemsize` bytes; None: no backward row.
    family: rows of one family have the same function. random: results differ from call to call.
    backward: the gradients are timed, those of the results being given, and not the function.
    """

    name: str
    function: Callable[..., Any]
    make: Make
    bytes_forward: Callable[[int], int]
    bytes_backward: Callable[[int], int] | None = None
    family: str = ""
    random: bool = False
    backward: bool = False

    def compulsory(self, itemsize: int) -> int:
        """Return the bytes that a call must move, for elements of so many bytes."""
        count = self.bytes_backward if self.backward else self.bytes_forward
        assert count is not None
        return count(itemsize)


def backward_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that time gradients, of those that have any."""
    return [
        replace(row, name=f"{row.name} backward", backward=True)
        for row in rows
        if row.bytes_backward is not None
    ]


def norm_rows(sizes: Sequence[tuple[int, int]]) -> list[Row]:
    """Return the norm and softmax rows at the given sizes (rows, columns)."""
    return [row for m, n in sizes for row in _norms(m, n)]


def _norms(m: int, n: int) -> list[Row]:
    size = f"{m}x{n}"
    return [
        Row(
            f"rms_norm {size}",
            rms_norm,
            lambda d: (d(m, n), d(n)),
            lambda e: (2 * m * n + n) * e,
            lambda e: (3 * m * n + 2 * n) * e,
            "rms_norm",
        ),
        Row(
            f"softmax {size}",
            softmax,
            lambda d: (d(m, n),),
            lambda e: 2 * m * n * e,
            lambda e: 3 * m * n * e,
            "softmax",
        ),
        Row(
            f"layer_norm {size}",
            layer_norm,
            lambda d: (d(m, n), d(n), d(n)),
            lambda e: (2 * m * n + 2 * n) * e,
            lambda e: (3 * m * n + 3 * n) * e,
            "layer_norm",
        ),
        Row(
            f"add_rms_norm {size}",
            add_rms_norm,
            lambda d: (d(m, n), d(m, n), d(n)),
            lambda e: (4 * m * n + n) * e,
            lambda e: (4 * m * n + 2 * n) * e,
            "add_rms_norm",
        ),
    ]


def loss_rows(sizes: Sequence[tuple[int, int]]) -> list[Row]:
    """Return the cross-entropy rows at the given sizes (rows, classes)."""
    return [_loss(m, n) for m, n in sizes]


def _loss(m: int, n: int) -> Row:
    return Row(
        f"ce {m}x{n}",
        cross_entropy,
        lambda d: (d(m, n), d.integers(n, m)),
        lambda e: m * n * e,
        lambda e: 2 * m * n * e,
        "ce",
    )


def pointwise_rows(m: int, n: int) -> list[Row]:
    """Return the elementwise rows at one size."""
    size, full = f"{m}x{n}", m * n
    x2 = lambda e: 2 * full * e  # noqa: E731
    x3 = lambda e: 3 * full * e  # noqa: E731
    x5 = lambda e: 5 * full * e  # noqa: E731
    return [
        Row(f"mul_add_relu {size}", mul_add_relu, lambda d: (d(m, n), d(n), d(n)), x2, x3),
        Row(f"bias_gelu {size}", bias_gelu, lambda d: (d(m, n), d(n)), x2, x3),
        Row(
            f"bias_gelu_dropout_add {size}",
            bias_gelu_dropout_add,
            lambda d: (d(m, n), d(n), d(m, n)),
            x3,
            x3,
            random=True,
        ),
        Row(f"swiglu {size}", swiglu, lambda d: (d(m, n), d(m, n)), x3, x5),
        Row(f"geglu_tanh {size}", geglu_tanh, lambda d: (d(m, n), d(m, n)), x3, x5),
        Row(f"gpt2_new_gelu {size}", gpt2_new_gelu, lambda d: (d(m, n),), x2, x3),
        Row(
            f"add_layer_norm {size}",
            add_layer_norm,
            lambda d: (d(m, n), d(m, n), d(n), d(n)),
            x3,
            x3,
        ),
        Row(f"layer_scale_add {size}", layer_scale_add, lambda d: (d(m, n), d(n), d(m, n)), x3),
        Row(
            f"dequant_add {size}",
            dequant_add,
            lambda d: (d.integers(255, m, n, dtype=torch.int8), d(n), d(m, n)),
            lambda e: full * (1 + 2 * e),
        ),
        Row(f"quant_int8 {size}", quant_int8, lambda d: (d(m, n),), lambda e: full * (e + 1)),
        Row(
            f"rms_quant_fp8 {size}",
            rms_quant_fp8,
            lambda d: (d(m, n), d(n)),
            lambda e: full * (e + 1),
        ),
    ]


def model_rows() -> list[Row]:
    """Return the rows that have shapes of their own."""
    b, s, c = 64, 1024, 1152
    bb, h, t = 8, 16, 1024
    image = (32, 320, 64, 64)
    pixels = 32 * 320 * 64 * 64
    maps = 64 * 256 * 56 * 56
    qk = (8 * 4096 * 128) * (32 + 8)
    return [
        Row(
            f"adaln {b}x{s}x{c}",
            adaln,
            lambda d: (d(b, s, c), d(b, 1, c), d(b, 1, c)),
            lambda e: 2 * b * s * c * e,
        ),
        Row(
            f"masked_softmax {bb}x{h}x{t}x{t}",
            masked_softmax,
            lambda d: (d(bb, h, t, t), d(bb, 1, t, t)),
            lambda e: (2 * bb * h * t * t + bb * t * t) * e,
        ),
        Row(
            "softcap_softmax 131072x1024",
            softcap_softmax,
            lambda d: (d(131072, 1024),),
            lambda e: 2 * 131072 * 1024 * e,
        ),
        Row(
            "softmax_dim1 256x512x1024",
            softmax_dim1,
            lambda d: (d(256, 512, 1024),),
            lambda e: 2 * 256 * 512 * 1024 * e,
        ),
        Row(
            "rope 8x32/8x4096x128",
            rope,
            lambda d: (d(8, 32, 4096, 128), d(8, 8, 4096, 128), d(4096, 128), d(4096, 128)),
            lambda e: 2 * qk * e,
        ),
        Row(
            "rope_bshd 8x4096x32/8x128",
            rope,
            lambda d: (
                d(8, 4096, 32, 128).transpose(1, 2),
                d(8, 4096, 8, 128).transpose(1, 2),
                d(4096, 128),
                d(4096, 128),
            ),
            lambda e: 2 * qk * e,
        ),
        Row(
            "emb_ln 64x512x1024",
            emb_ln,
            lambda d: (d.integers(50257, 64, 512), d(50257, 1024), d(1024, 1024), d(1024), d(1024)),
            lambda e: 2 * 64 * 512 * 1024 * e,
        ),
        Row(
            "gn_silu 32x320x64x64",
            gn_silu,
            lambda d: (d(*image), d(320), d(320)),
            lambda e: 2 * pixels * e,
        ),
        Row(
            "gn_silu_cl 32x320x64x64",
            gn_silu,
            lambda d: (d(*image).to(memory_format=torch.channels_last), d(320), d(320)),
            lambda e: 2 * pixels * e,
        ),
        Row(
            "bn_relu_eval 64x256x56x56",
            bn_relu_eval,
            lambda d: (d(64, 256, 56, 56), d(256), d(256).abs(), d(256), d(256)),
            lambda e: 2 * maps * e,
        ),
    ]


NORM_SIZES = tuple((2**27 // n, n) for n in (1024, 2048, 4096, 8192, 16384, 32768, 65536))
LONG_SIZES = ((1024, 131072), (512, 262144))
LOSS_SIZES = ((8192, 32000), (8192, 128256), (4096, 256000))


def target_rows() -> list[Row]:
    """Return the rows of the published comparison, in its order."""
    long = [r for r in norm_rows(LONG_SIZES) if r.family in ("rms_norm", "softmax")]
    return [
        *norm_rows(NORM_SIZES),
        *long,
        *loss_rows(LOSS_SIZES),
        *pointwise_rows(32768, 4096),
        *model_rows(),
    ]


def unseen_rows() -> list[Row]:
    """Return rows that no schedule was chosen on: odd lengths, few rows, strides, transposes."""
    sizes = [(2**26 // n, n) for n in (768, 1000, 3072, 5120, 11008, 12289, 50257)]
    few = [(m, n) for m in (1, 8, 64) for n in (4096, 32768)]
    rows = norm_rows([*sizes, *few])
    for m, n in ((87381, 768), (21845, 3072), (6096, 11008)):
        rows += pointwise_rows(m, n)
    return [*rows, *_strided_rows()]


def _strided_rows() -> list[Row]:
    """Norms and activations of a slice of a packed tensor, and of a transposed one."""
    m, n = 16384, 2048
    return [
        Row(
            f"rms_norm of a slice {m}x{n}",
            rms_norm,
            lambda d: (d(m, 3 * n)[:, n : 2 * n], d(n)),
            lambda e: (2 * m * n + n) * e,
        ),
        Row(
            f"softmax of a transposed {m}x{n}",
            softmax,
            lambda d: (d(n, m).t(),),
            lambda e: 2 * m * n * e,
        ),
        Row(
            f"swiglu of halves {m}x{n}",
            lambda x: swiglu(*x.chunk(2, -1)),
            lambda d: (d(m, 2 * n),),
            lambda e: 3 * m * n * e,
        ),
        Row(
            f"layer_norm of a transposed {m}x{n}",
            layer_norm,
            lambda d: (d(n, m).t(), d(n), d(n)),
            lambda e: (2 * m * n + 2 * n) * e,
        ),
    ]
