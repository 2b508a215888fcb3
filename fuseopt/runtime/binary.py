"""What a kernel is compiled for, and what comes out: target, machine code, assembly, facts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from fuseopt.codegen.source import KernelSource
from fuseopt.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget


KNOWN = (75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)  # what Triton compiles for


@dataclass(frozen=True, slots=True)
class Target:
    """The device kind that code is made for. `arch` is the compute capability times ten: 90."""

    backend: str
    arch: int
    warp_size: int = 32

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read "sm_80", "sm_90", "sm_100"...; anything else is a `UsageError`."""
        match = re.fullmatch(r"sm_?(\d{2,3})[af]?", text)
        if match is None:
            raise UsageError(f"target {text!r} is not of the form sm_80, sm_90, sm_100")
        if int(match[1]) not in KNOWN:  # for others LLVM ends the process
            names = ", ".join(f"sm_{arch}" for arch in KNOWN)
            raise UsageError(f"target {text!r} is not one of {names}")
        return cls("cuda", int(match[1]))

    @classmethod
    def of(cls, device: torch.device | str | int) -> Target:
        """Return the target of a CUDA device; `UnsupportedError` for any other device."""
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if device.type != "cuda" or torch.version.hip is not None:
            raise UnsupportedError(
                f"device {device} is not one that kernels are compiled for: cuda"
            )
        major, minor = torch.cuda.get_device_capability(device)
        return cls("cuda", major * 10 + minor)

    def __str__(self) -> str:
        return f"sm_{self.arch}"

    def as_triton(self) -> GPUTarget:
        """Return the same target as Triton's own class."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self.backend, self.arch, self.warp_size)


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    """A compiled kernel, on no device yet.

    path: the file that holds the kernel's text; tracebacks and debuggers point into it.
    metadata: what Triton recorded: name, num_warps, shared (dynamic bytes), scratch sizes, ...
    """

    source: KernelSource
    target: Target
    path: Path
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)

    @property
    def symbol(self) -> str:
        """The kernel's name in the machine code."""
        return str(self.metadata["name"])

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of one program, in bytes."""
        return int(self.metadata["shared"])

    @property
    def scratch_bytes(self) -> int:
        """Global memory that each program needs beside its arguments, in bytes."""
        sizes = ("global_scratch_size", "profile_scratch_size")
        return sum(int(self.metadata.get(name) or 0) for name in sizes)

    def triton_metadata(self) -> SimpleNamespace:
        """Return the metadata as attributes, the way Triton's launcher reads it."""
        return SimpleNamespace(**{**self.metadata, "target": self.target.as_triton()})

    def to_bytes(self) -> bytes:
        """Return everything but the source as one block: a line of JSON, the PTX, the cubin."""
        ptx = self.ptx.encode()
        head = {"metadata": dict(self.metadata), "ptx": len(ptx)}
        return json.dumps(head).encode() + b"\n" + ptx + self.cubin

    @classmethod
    def from_bytes(cls, data: bytes, source: KernelSource, target: Target, path: Path) -> Binary:
        """Undo `to_bytes`."""
        line, _, rest = data.partition(b"\n")
        head = json.loads(line)
        size = head["ptx"]
        return cls(source, target, path, rest[:size].decode(), rest[size:], head["metadata"])
