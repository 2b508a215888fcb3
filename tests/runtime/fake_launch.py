"""Launches on the fake driver, in a process of its own; prints what the driver was given as JSON.

python fake_launch.py <folder with libcuda.so.1> <store>
"""

import ctypes
import json
import struct
import sys
from pathlib import Path

import torch
import triton
from triton.backends.nvidia.driver import CudaDriver

from fuseopt.errors import KernelError
from fuseopt.runtime import launch, launch_direct
from fuseopt.runtime.cache import Store
from fuseopt.runtime.compile import KernelSource, Target, compile_kernel

sys.path.insert(0, str(Path(__file__).parent))
from sample_kernels import scalars_kernel, wide_kernel


class Record(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("function", ctypes.c_uint64),
        ("launches", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("sizes", ctypes.c_uint64 * 64),
        ("values", ctypes.c_uint64 * 64),
    ]


class FakeDriver(CudaDriver):
    def __init__(self) -> None:
        super().__init__()
        self.device = 0
        self.get_current_device = lambda: self.device
        self.set_current_device = lambda index: setattr(self, "device", index)
        self.get_device_capability = lambda index=0: (9, 0)


SIZES = {"i1": 1, "i32": 4, "i64": 8, "fp32": 4, "fp64": 8}


def run(launcher: launch.Launcher, source: KernelSource, record: Record, args: list) -> dict:
    sizes = [8 if p.kind == "pointer" else SIZES[p.dtype] for p in source.params] + [8, 8]
    record.count, record.sizes[: len(sizes)] = len(sizes), sizes
    before = record.launches
    launcher.launch(5, 6, 7, 1234, *args)
    expected = []
    for param, arg in zip(source.params, args, strict=True):
        if param.kind == "pointer":
            data = struct.pack("<Q", arg if isinstance(arg, int) else arg.data_ptr())
        elif param.kind == "float":
            data = struct.pack("<f" if param.dtype == "fp32" else "<d", arg)
        else:
            data = int(arg).to_bytes(8, "little", signed=True)[: SIZES[param.dtype]]
        expected.append(int.from_bytes(data, "little"))
    return {
        "direct": launcher.direct,
        "grid": list(record.grid),
        "block": record.block,
        "stream": record.stream,
        "function": record.function,
        "launches": record.launches - before,
        "values": list(record.values[: len(sizes)]),
        "expected": [*expected, 0, 0],
    }


def refusals(launcher: launch.Launcher, store: Store) -> list[str]:
    x = torch.ones(8)
    refused = []
    for attempt in (
        lambda: launcher.launch(1, 1, 1, 0, x),
        lambda: launcher(1, 1, 1, 0, x, x, 3),
        lambda: launcher_for(wide_kernel(2, warps=16), "sm_90", store),
        lambda: launcher_for(wide_kernel(2), "sm_80", store),
    ):
        try:
            attempt()
        except (KernelError, TypeError) as error:
            refused.append(f"{type(error).__name__}: {error}")
    return refused


def launcher_for(source: KernelSource, target: str, store: Store) -> launch.Launcher:
    return launch.Launcher(compile_kernel(source, Target.parse(target), store), 0)


def main(folder: str, root: str) -> None:
    record = Record.in_dll(ctypes.CDLL(folder + "/libcuda.so.1"), "record")
    triton.runtime.driver.set_active(FakeDriver())
    store, x, y, results = Store(root), torch.ones(8), torch.ones(8), []
    refused, empty = [], []
    for known in (True, False):
        if not known:
            launch_direct._BINDERS.clear()
        for source, args in (
            (scalars_kernel(), [x, -5, -(1 << 40), 0.1, 0.1, True]),
            (wide_kernel(3), [x, y, x, -7]),
            (wide_kernel(11), [x, y, *[x] * 9, 9]),
            (wide_kernel(2), [x, y.data_ptr() + 16, 9]),
        ):
            launcher = launcher_for(source, "sm_90", store)
            results.append(run(launcher, source, record, args))
        refused.append(refusals(launcher, store))
        before = record.launches
        launcher.launch(0, 1, 1, 1234, *args)
        empty.append(record.launches - before)
    sys.stdout.write(json.dumps({"launches": results, "refused": refused, "empty": empty}))


if __name__ == "__main__":
    main(*sys.argv[1:])
