"""What code generation hands to the runtime: a kernel's text and how to build it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Param:
    """One runtime parameter of a kernel.

    kind: "pointer" (dtype is the element type's Triton name: "bf16", "fp32", "i1", ...), "int"
    (dtype "i32" or "i64") or "float" (dtype "fp32" or "fp64").
    aligned: a pointer is divisible by 16 bytes, an int by 16, at every launch.
    """

    name: str
    kind: str
    dtype: str
    aligned: bool = False

    @property
    def signature(self) -> str:
        """The type in Triton's signature syntax: "*bf16", "i32"."""
        return f"*{self.dtype}" if self.kind == "pointer" else self.dtype


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A Triton kernel: a complete Python module `text` that defines the jitted function `name`.

    The function takes `params` in order, then `constexprs` by name. `text` imports what it needs
    and nothing of fuseopt, so that it can be saved and run on its own.
    """

    name: str
    text: str
    params: tuple[Param, ...]
    constexprs: tuple[tuple[str, int], ...] = ()
    num_warps: int = 4
    num_stages: int = 1
    registers: int = 0  # the most a thread may use; 0 leaves it to the compiler
    debug: bool = False  # compile device asserts in

    @property
    def digest(self) -> str:
        """A stable hash of everything that decides the binary, without versions or target."""
        parts = (
            self.text,
            self.params,
            self.constexprs,
            self.num_warps,
            self.num_stages,
            self.registers,
            self.debug,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
