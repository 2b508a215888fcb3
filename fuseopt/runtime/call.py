"""Calling a region's kernel: outputs allocated, the binary for the sizes at hand launched.

A kernel of fixed shapes has one binary. One with size symbols has a binary for each bucket of
sizes (powers of two), made when first needed; within a bucket one schedule serves all sizes. A
number that it only computes with, like a step's, is no size: one binary serves all its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fuseopt.codegen.generate import Candidate
from fuseopt.errors import FuseOptError
from fuseopt.ir import dims
from fuseopt.ir.kernel import LoopKernel, TensorParam
from fuseopt.ir.memory import memory_of

Launch = Callable[..., None]  # launch(programs, 1, 1, stream, *tensors, *sizes)


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel ready to launch. path: the file with its text."""

    candidate: Candidate
    launch: Launch
    path: str = ""

    def grid(self, sizes: dict[Any, int]) -> int:
        """Return the number of programs for the values of the size symbols."""
        return self.candidate.grid(sizes)

    def passed(self, sizes: dict[Any, int]) -> list[int]:
        """Return the sizes that a launch takes after the tensors."""
        return [sizes[s] for s in self.candidate.symbols]

    def scratch(self, sizes: dict[Any, int], device: torch.device) -> list[torch.Tensor]:
        """Return the memory that a launch works in and takes last."""
        return [
            (torch.zeros if s.zeroed else torch.empty)(s.count, dtype=s.dtype, device=device)
            for s in self.candidate.scratch(sizes)
        ]


@dataclass(slots=True, eq=False)
class RegionKernel:
    """The kernel that all regions of one structure share.

    name: the kernel's name. kernel: what it computes. symbols: its size symbols, in the order in
    which calls pass them. build: makes the binary for given sizes. seconds, seconds_before: time of
    the kernel and of what it replaces, where they were measured. original: the operations replaced,
    which run at sizes that no binary can be made for; refused is told the sizes and why.
    """

    name: str
    kernel: LoopKernel
    symbols: tuple[Any, ...]
    device: torch.device
    build: Callable[[dict[Any, int]], Built]
    built: dict[tuple[int, ...], Built] = field(default_factory=dict)
    seconds: float = 0.0
    seconds_before: float = 0.0
    original: Callable[..., Sequence[torch.Tensor]] | None = None
    refused: Callable[[Sequence[int], FuseOptError], None] = lambda sizes, error: None
    _are_extents: tuple[bool, ...] = field(init=False)
    _without: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        extents = self.kernel.extents()
        self._are_extents = tuple(symbol in extents for symbol in self.symbols)

    @property
    def __name__(self) -> str:
        return self.name

    def bucket(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes that a kernel for these is built for."""
        return tuple(
            1 << (size - 1).bit_length() if size > 1 and is_extent else 1
            for is_extent, size in zip(self._are_extents, sizes, strict=True)
        )

    def for_sizes(self, sizes: Sequence[int]) -> Built:
        """Return the kernel built for sizes like these."""
        bucket = self.bucket(sizes)
        found = self.built.get(bucket)
        if found is None:
            hints = dict(zip(self.symbols, bucket, strict=True))
            found = self.built[bucket] = self.build(hints)
        return found

    def __call__(self, *args: Any) -> Any:
        """Run the kernel on tensors followed by sizes; return its output or a tuple of them."""
        count = len(self.kernel.inputs)
        tensors, values = args[:count], args[count:]
        sizes = dict(zip(self.symbols, values, strict=True))
        outputs = [self._allocate(p, sizes) for p in self.kernel.outputs]
        if all(o.numel() for o in outputs):
            built = self._for_call(values)
            if built is None:
                return self._as_written(args, sizes)
            params = zip(tensors, self.kernel.inputs, strict=True)
            ready = [realign(restride(t, self._strides(p, sizes))) for t, p in params]
            passed = [*built.passed(sizes), *built.scratch(sizes, self.device)]
            built.launch(built.grid(sizes), 1, 1, stream_of(self.device), *ready, *outputs, *passed)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _for_call(self, sizes: Sequence[int]) -> Built | None:
        """Return the kernel for sizes like these, None where there is none: a call must not end."""
        if self._without and self.bucket(sizes) in self._without:
            return None
        try:
            return self.for_sizes(sizes)
        except FuseOptError as error:
            if self.original is None:
                raise
            self._without.add(self.bucket(sizes))
            self.refused(sizes, error)
            return None

    def _as_written(self, args: Sequence[Any], sizes: dict[Any, int]) -> Any:
        assert self.original is not None
        made = zip(self.original(*args), self.kernel.outputs, strict=True)
        outputs = [restride(t, self._strides(p, sizes)) for t, p in made]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _strides(self, param: TensorParam, sizes: dict[Any, int]) -> tuple[int, ...]:
        return tuple(dims.hint(s, sizes) for s in param.strides)

    def _allocate(self, param: TensorParam, sizes: dict[Any, int]) -> torch.Tensor:
        shape = [dims.hint(s, sizes) for s in param.shape]
        strides = self._strides(param, sizes)
        return torch.empty_strided(shape, strides, dtype=param.dtype, device=self.device)


ALIGNMENT = 16  # bytes: what kernels assume of every pointer


def realign(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy with the same strides where its data is not aligned."""
    if tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    copy = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    # An expanded or overlapping tensor is copied through the memory it spans.
    memory_of(copy).copy_(memory_of(tensor))
    return copy


def restride(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return the tensor, or a copy with the given strides where its own differ.

    PyTorch's shape inference predicts the strides of an op's result, and a device's kernel may lay
    it out in another way.
    """
    pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if all(n == 1 or own == wanted for n, own, wanted in pairs):
        return tensor
    # A dimension of stride zero repeats its first element.
    first = tensor
    for dim, stride in enumerate(strides):
        first = first.narrow(dim, 0, 1) if stride == 0 else first
    copy = torch.empty_strided(first.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(first).expand(tensor.shape)


def stream_of(device: torch.device) -> int:
    """Return the raw handle of a device's current stream, 0 for the CPU."""
    if device.type != "cuda":
        return 0
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch._C._cuda_getCurrentRawStream(index)
