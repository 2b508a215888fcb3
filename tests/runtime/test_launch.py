from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from sample_kernels import norm_kernel, scalars_kernel, spilling_kernel, unary_kernel, wide_kernel

from fuseopt.errors import KernelError, UnsupportedError
from fuseopt.runtime.compile import Target, compile_kernel
from fuseopt.runtime.launch import Launcher
from fuseopt.runtime.launch_direct import is_known

HERE = Path(__file__).parent
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def launcher_of(source, store, device: int = 0) -> Launcher:
    return Launcher(compile_kernel(source, Target.of(device), store), device)


def stream(device: int = 0) -> int:
    return torch.cuda.current_stream(device).cuda_stream


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_launching_says_so(store):
    binary = compile_kernel(wide_kernel(2), Target.parse("sm_90"), store)
    with pytest.raises(UnsupportedError, match="no device that Triton can launch on"):
        Launcher(binary, 0)


def test_tritons_launcher_is_one_we_know():
    import triton
    from triton.backends.nvidia.driver import CudaLauncher

    assert not is_known(object())
    if tuple(map(int, triton.__version__.split(".")[:2])) > (3, 9):
        pytest.skip(f"the launcher of triton {triton.__version__} may be one we have not read")
    assert is_known(CudaLauncher)


@pytest.fixture(scope="module")
def fake_results(tmp_path_factory, store) -> dict:
    """What a driver that only takes notes was given, by direct and by general launches."""
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux" or torch.cuda.is_available():
        pytest.skip("needs gcc, Linux, and no CUDA device: the real driver would be in the way")
    import triton

    folder = tmp_path_factory.mktemp("driver")
    headers = Path(triton.__file__).parent / "backends/nvidia/include"
    library = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-I{headers}"]
    subprocess.run([compiler, *flags, str(HERE / "fake_cuda.c"), "-o", str(library)], check=True)
    environment = {
        **os.environ,
        "TRITON_LIBCUDA_PATH": str(folder),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "fake_launch.py"), str(folder), str(store.root)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_driver_gets_every_argument_in_its_place(fake_results):
    from triton.backends.nvidia.driver import CudaLauncher

    launches = fake_results["launches"]
    known = is_known(CudaLauncher)
    assert [launch["direct"] for launch in launches] == [known] * 4 + [False] * 4
    for launch in launches:
        assert launch["values"] == launch["expected"]
        assert launch["grid"] == [5, 6, 7]
        assert (launch["stream"], launch["function"], launch["launches"]) == (1234, 3, 1)
    assert [launch["block"] for launch in launches] == [32, 128, 128, 128] * 2
    assert fake_results["empty"] == [0, 0]


def test_what_does_not_fit_is_refused_before_the_driver(fake_results):
    for arity, device, threads, arch in fake_results["refused"]:
        assert arity.startswith("TypeError")
        assert device == (
            "KernelError: kernel wide: argument p0 is on cpu, but the kernel runs on cuda:0"
        )
        # Our words, or Triton's where it loads the kernel.
        assert threads.startswith("KernelError")
        assert re.search("its registers allow 256 on cuda:0|threads, .*512, .*256", threads)
        assert arch.endswith(
            "compiled for sm_80, but cuda:0 is sm_90; compile it for Target.of(device)"
        )


@pytest.mark.gpu
@no_gpu
def test_a_launch_computes(store):
    x, w = torch.randn(8, 1024).bfloat16().cuda(), torch.randn(1024).bfloat16().cuda()
    out = torch.zeros_like(x)
    launcher = launcher_of(norm_kernel(1024), store)
    assert launcher.direct
    launcher(8, 1, 1, stream(), x, w, out)
    truth = torch.nn.functional.layer_norm(x.float(), (1024,), w.float())
    torch.testing.assert_close(out.float(), truth, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@no_gpu
def test_numbers_arrive(store):
    out = torch.zeros(8, dtype=torch.float64, device="cuda")
    single = torch.tensor(0.1, dtype=torch.float32).double().item()
    launcher = launcher_of(scalars_kernel(), store)
    for flag in (True, False):
        for big in (7, 1 << 40, -(1 << 40)):
            launcher(1, 1, 1, stream(), out, -5, big, 0.1, 0.1, flag)
            expected = torch.full((8,), -5 + big + single + 0.1 + flag, dtype=torch.float64)
            torch.testing.assert_close(out.cpu(), expected, rtol=1e-15, atol=0)


@pytest.mark.gpu
@no_gpu
@pytest.mark.parametrize("count", [2, 7, 8, 15, 33])
def test_any_number_of_pointers_arrives_directly_or_not(store, monkeypatch, count):
    from fuseopt.runtime import launch_direct

    source = wide_kernel(count)
    out = torch.zeros(300, device="cuda")
    inputs = [torch.randn(300, device="cuda") for _ in range(count - 1)]
    launchers = [launcher_of(source, store)]
    monkeypatch.setattr(launch_direct, "_BINDERS", {})
    launchers.append(launcher_of(source, store))
    assert [launcher.direct for launcher in launchers] == [True, False]
    for launcher in launchers:
        out.zero_()
        launcher.launch(3, 1, 1, stream(), out, *inputs, 300)
        torch.testing.assert_close(out, sum(inputs), rtol=1e-5, atol=1e-5)
        out.zero_()
        addresses = [t.data_ptr() for t in inputs]
        launcher(3, 1, 1, stream(), out, *addresses, 300)
        torch.testing.assert_close(out, sum(inputs), rtol=1e-5, atol=1e-5)
        launcher(0, 1, 1, stream(), out, *inputs, 300)
        with pytest.raises(TypeError):
            launcher.launch(3, 1, 1, stream(), out)


@pytest.mark.gpu
@no_gpu
def test_a_launch_is_captured_in_a_graph(store):
    x, out = torch.ones(300, device="cuda"), torch.zeros(300, device="cuda")
    launcher = launcher_of(unary_kernel("x * 2.0"), store)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launcher.launch(3, 1, 1, stream(), x, out, 300)
    out.zero_()
    x.fill_(21)
    graph.replay()
    torch.cuda.synchronize()
    assert out.tolist() == [42.0] * 300


@pytest.mark.gpu
@no_gpu
def test_arguments_are_checked_when_asked(store):
    x = torch.ones(300, device="cuda")
    launcher = launcher_of(unary_kernel("x"), store)
    with pytest.raises(KernelError, match="x_ptr is on cpu"):
        launcher(3, 1, 1, stream(), x.cpu(), x, 300)
    with pytest.raises(KernelError, match=r"out_ptr is torch\.float16"):
        launcher(3, 1, 1, stream(), x, x.half(), 300)


@pytest.mark.gpu
@no_gpu
def test_a_spilling_kernel_still_loads_and_runs(store):
    x, w = torch.randn(2, 16384).bfloat16().cuda(), torch.ones(16384).bfloat16().cuda()
    out = torch.zeros_like(x)
    launcher_of(spilling_kernel(), store)(2, 1, 1, stream(), x, w, out)
    truth = torch.nn.functional.layer_norm(x.float(), (16384,), w.float())
    torch.testing.assert_close(out.float(), truth, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@no_gpu
def test_a_launch_takes_a_few_microseconds_of_the_host(store):
    tensors = [torch.ones(128, device="cuda") for _ in range(5)]
    launch = launcher_of(wide_kernel(5), store).launch
    where, best = stream(), float("inf")
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            launch(1, 1, 1, where, *tensors, 128)
        best = min(best, (time.perf_counter() - start) / 200)
    torch.cuda.synchronize()
    assert best < 8e-6


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_each_device_has_its_own_module(store):
    source = unary_kernel("x + 1.0")
    for device in (1, 0, 1):
        launcher = launcher_of(source, store, device)
        assert torch.cuda.current_device() == 0
        with torch.cuda.device(device):
            x = torch.ones(300, device=f"cuda:{device}")
            out = torch.zeros_like(x)
            launcher(3, 1, 1, stream(device), x, out, 300)
            assert out.tolist() == [2.0] * 300
