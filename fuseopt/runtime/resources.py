"""What a compiled kernel takes of the chip, read from its machine code with NVIDIA's tools.

Needs no device: Triton brings `cuobjdump` and `nvdisasm` along. Registers and the stack come from
the cubin's own table, spills from counting the instructions that touch local memory, and access
widths from the PTX, where one instruction moves `vector * bits` of one thread.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fuseopt.runtime.binary import Binary

_ACCESS = re.compile(r"\b(ld|st)\.(?:\w+[.:]+)*?global(?:[.:]+\w+)*?(?:\.v(\d))?\.[bfsu](\d+)\b")
# Loads straight to shared memory, in pipelined loops: `cp.async.cg.shared.global [a], [b], 0x10`.
_COPY = re.compile(r"\bcp\.async\.c\w\.shared\.global[^,;]*,[^,;]*,\s*(0x[0-9a-f]+|\d+)")


@dataclass(frozen=True, slots=True)
class Resources:
    """Figures of one kernel; None where the tool that tells them is missing.

    registers: 32-bit registers of a thread.
    stack_bytes: local memory of a thread, spilled registers included.
    spill_loads, spill_stores: instructions that read and write local memory.
    static_shared_bytes: shared memory fixed in the cubin; from sm_90 on 1024 of it is the system's.
    dynamic_shared_bytes: shared memory that the launch asks for.
    load_bytes, store_bytes: bytes that one thread moves in one global memory instruction, each
        width that occurs, ascending; 16 (32 on sm_100) is the widest.
    """

    registers: int | None
    stack_bytes: int | None
    spill_loads: int | None
    spill_stores: int | None
    static_shared_bytes: int | None
    dynamic_shared_bytes: int
    load_bytes: tuple[int, ...]
    store_bytes: tuple[int, ...]

    @property
    def spills(self) -> bool | None:
        """Whether registers overflow to memory; None when unknown."""
        if self.spill_loads is None or self.spill_stores is None:
            return None
        return self.spill_loads + self.spill_stores > 0

    @property
    def widest_load(self) -> int:
        """Bytes of the widest global load of one thread; 0 when there is none."""
        return max(self.load_bytes, default=0)

    @property
    def widest_store(self) -> int:
        """Bytes of the widest global store of one thread; 0 when there is none."""
        return max(self.store_bytes, default=0)


def read_resources(binary: Binary) -> Resources:
    """Read a kernel's figures: 2 ms, or 0.3 s when it has a stack and must be disassembled."""
    with tempfile.TemporaryDirectory(prefix="fuseopt-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(binary.cubin)
        usage = _run("cuobjdump", "--dump-resource-usage", str(path))
        stack = _number(usage, "STACK")
        # Spills live in the stack frame: without one there is nothing to count.
        code = "" if stack == 0 else _run("nvdisasm", "-c", "-ndf", str(path))
    loads, stores = access_widths(binary.ptx)
    return Resources(
        registers=_number(usage, "REG"),
        stack_bytes=stack,
        spill_loads=_count(code, "LDL"),
        spill_stores=_count(code, "STL"),
        static_shared_bytes=_number(usage, "SHARED"),
        dynamic_shared_bytes=binary.shared_bytes,
        load_bytes=loads,
        store_bytes=stores,
    )


def access_widths(ptx: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the widths in bytes of the global loads and stores in PTX text, ascending."""
    widths: dict[str, set[int]] = {"ld": set(), "st": set()}
    for kind, vector, bits in _ACCESS.findall(ptx):
        widths[kind].add(int(vector or 1) * int(bits) // 8)
    widths["ld"].update(int(size, 0) for size in _COPY.findall(ptx))
    return tuple(sorted(widths["ld"])), tuple(sorted(widths["st"]))


def _run(tool: str, *args: str) -> str | None:
    from triton import knobs

    try:
        path = getattr(knobs.nvidia, tool).path
        done = subprocess.run([path, *args], capture_output=True, text=True, check=True)
    except (RuntimeError, AttributeError, OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def _number(usage: str | None, name: str) -> int | None:
    match = re.search(rf"\b{name}:(\d+)", usage or "")
    return int(match[1]) if match else None


def _count(code: str | None, opcode: str) -> int | None:
    return None if code is None else len(re.findall(rf"\b{opcode}\b", code))
