from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from sample_kernels import HEAD, kernel, norm_kernel, pointers, unary_kernel

from fuseopt.codegen.source import KernelSource, Param
from fuseopt.errors import KernelError, UnsupportedError, UsageError
from fuseopt.runtime import compile as compile_module
from fuseopt.runtime.cache import Store
from fuseopt.runtime.compile import Target, compile_kernel, compile_many, load_function
from fuseopt.runtime.module import source_path

SM90 = Target.parse("sm_90")


def test_targets_are_read_from_text():
    assert Target("cuda", 90, 32) == SM90
    assert Target.parse("sm_100a") == Target("cuda", 100)
    assert str(Target.parse("sm80")) == "sm_80"
    for text in ("90", "gfx942", "sm_9", ""):
        with pytest.raises(UsageError, match="is not of the form"):
            Target.parse(text)
    with pytest.raises(UnsupportedError, match="cpu"):
        Target.of("cpu")


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_a_kernel_compiles_without_a_device(store, arch):
    binary = compile_kernel(norm_kernel(1024), Target("cuda", arch), store)
    assert binary.cubin.startswith(b"\x7fELF")
    assert f".target sm_{arch}" in binary.ptx
    assert binary.symbol == "norm"
    assert binary.shared_bytes > 0
    assert binary.scratch_bytes == 0
    assert binary.path.read_text() == binary.source.text


def test_a_second_compilation_comes_from_the_store(store, monkeypatch):
    source = norm_kernel(512)
    first = compile_kernel(source, SM90, store)
    monkeypatch.setattr(compile_module, "_make", None)
    again = compile_kernel(source, SM90, Store(store.root))
    assert (again.cubin, again.ptx) == (first.cubin, first.ptx)
    assert again.metadata == first.metadata
    assert vars(again.triton_metadata()) == vars(first.triton_metadata())


def test_what_decides_the_code_decides_the_entry(store, monkeypatch):
    source = norm_kernel(512)
    keys = {
        compile_module._key(s, t)
        for s in (source, replace(source, num_warps=8), replace(source, debug=True))
        for t in (SM90, Target.parse("sm_80"))
    }
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/other/ptxas")
    keys.add(compile_module._key(source, SM90))
    assert len(keys) == 7


def test_products_and_sums_contract_unless_the_user_says_otherwise(store, monkeypatch):
    monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION", raising=False)
    source = unary_kernel("x * 3.0 + 1.0")
    assert "fma." in compile_kernel(source, SM90, store).ptx
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    assert "fma." not in compile_kernel(source, SM90, store).ptx


def test_a_damaged_binary_is_made_again(store):
    source = norm_kernel(256)
    first = compile_kernel(source, SM90, store)
    path = store.directory / "binary" / compile_module._key(source, SM90)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(RuntimeWarning, match="is damaged"):
        again = compile_kernel(source, SM90, store)
    assert again.cubin == first.cubin


def test_device_asserts_are_compiled_in_on_demand(store):
    body = (
        "x = tl.load(x_ptr + i)\ntl.device_assert(x > 0.0, 'not positive')\ntl.store(x_ptr + i, x)"
    )
    plain = kernel("checked", body, pointers(x_ptr="fp32"))
    assert "__assertfail" not in compile_kernel(plain, SM90, store).ptx
    assert "__assertfail" in compile_kernel(replace(plain, debug=True), SM90, store).ptx


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "def bad(x):\n    tl.store(x, missing)\n", "missing is not defined"),
        (HEAD + "def bad(x):\n    tl.store(x, tl.load(x) + 'a')\n", "does not compile for sm_90"),
        (HEAD + "def bad(x:\n", "does not run .SyntaxError"),
        ("import nothing_of_this_name\n", "does not run .ModuleNotFoundError"),
        (HEAD + "def good(x):\n    pass\n", "defines no @triton.jit function"),
        ("def bad(x):\n    pass\n", "defines no @triton.jit function"),
        (HEAD + "def bad(x, y):\n    pass\n", r"takes \(x, y\) but its source declares \(x\)"),
    ],
)
def test_a_bad_text_is_one_line_that_names_kernel_and_file(store, text, message):
    source = KernelSource("bad", text, pointers(x="fp32"))
    with pytest.raises(KernelError, match=message) as caught:
        compile_kernel(source, SM90, store)
    assert "kernel bad" in str(caught.value)
    assert str(source_path(source, store)) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert source_path(source, store).read_text() == text


def test_what_ptxas_refuses_is_a_kernel_error(store, monkeypatch):
    import triton
    from triton.runtime.errors import PTXASError

    def refuse(*args: object, **options: object) -> None:
        raise PTXASError("`ptxas` failed with error code 1\n`ptxas` stderr:\n...")

    monkeypatch.setattr(triton, "compile", refuse)
    with pytest.raises(KernelError, match=r"ptxas. failed with error code 1") as caught:
        compile_kernel(unary_kernel("x + 41.0"), SM90, store)
    assert "\n" not in str(caught.value)


def test_many_are_compiled_once_each_in_order(store, monkeypatch):
    made, threads = [], set()
    make = compile_module._make

    def counting(source, target, store):
        made.append(source.digest)
        threads.add(threading.get_ident())
        return make(source, target, store)

    monkeypatch.setattr(compile_module, "_make", counting)
    good = [unary_kernel(f"x * {n}.0") for n in range(3)]
    bad = KernelSource("bad", HEAD + "def bad(x):\n    missing(x)\n", pointers(x="fp32"))
    sources = [good[0], bad, good[1], good[0], good[2], bad]
    results = compile_many(sources, SM90, store, jobs=3)
    assert sorted(made) == sorted({s.digest for s in sources})
    assert threading.get_ident() not in threads
    assert results[0] is results[3]
    assert isinstance(results[1], KernelError)
    assert results[1] is results[5]
    assert [r.source for r in results if not isinstance(r, KernelError)] == [
        good[0],
        good[1],
        good[0],
        good[2],
    ]
    made.clear()
    again = compile_many(good, SM90, store, jobs=3)
    assert [r.cubin for r in again] == [results[i].cubin for i in (0, 2, 4)]
    assert made == []
    assert compile_many([], SM90, store) == []


def test_sources_that_differ_in_name_only_are_two_kernels(store):
    text = HEAD + "def one(x):\n    tl.store(x, 1.0)\n\n\n" + HEAD.rpartition("\n\n\n")[2]
    text += "def two(x):\n    tl.store(x, 2.0)\n"
    sources = [KernelSource(name, text, pointers(x="fp32")) for name in ("one", "two")]
    results = compile_many(sources, SM90, store, jobs=2)
    assert [r.symbol for r in results] == ["one", "two"]


def test_a_text_is_executed_once_per_process_and_place(store, tmp_path):
    text = "import builtins\nbuiltins.executed = getattr(builtins, 'executed', 0) + 1\n"
    source = KernelSource("k", text + HEAD + "def k(x):\n    pass\n", pointers(x="fp32"))
    import builtins

    try:
        first = load_function(source, store)
        assert load_function(replace(source, num_warps=8), store) is first
        assert builtins.executed == 1
        other = load_function(source, Store(tmp_path))
        assert other.fn.__code__.co_filename.startswith(str(tmp_path))
        assert builtins.executed == 2
    finally:
        del builtins.executed


def test_what_the_cache_file_holds_is_never_executed(store):
    source = unary_kernel("x + 40.0")
    source_path(source, store).write_text("raise SystemExit('executed')\n")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        compile_kernel(source, SM90, store)


INTERPRETED = """
import sys
from fuseopt.errors import KernelError
from fuseopt.runtime.cache import Store
from fuseopt.runtime.compile import Target, compile_kernel
sys.path.insert(0, sys.argv[2])
from sample_kernels import unary_kernel
try:
    compile_kernel(unary_kernel("x + 1.0"), Target.parse("sm_90"), Store(sys.argv[1]))
except KernelError as error:
    sys.stdout.write(str(error))
"""


def test_with_tritons_interpreter_on_it_says_so(tmp_path):
    here = os.path.dirname(__file__)
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, str(tmp_path), here],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot be compiled while TRITON_INTERPRET is set; unset it" in done.stdout


def test_parameters_reach_triton_as_declared(store):
    params = (*pointers(x="fp32"), Param("n", "int", "i64"), Param("s", "float", "fp32"))
    source = kernel("typed", "tl.store(x + i, n.to(tl.float32) * s, mask=i < n)", params)
    ptx = compile_kernel(source, SM90, store).ptx
    entry = ptx[ptx.index(".entry typed") :].partition(")")[0]
    kinds = [line.split()[1] for line in entry.splitlines() if ".param" in line]
    # The three parameters, then Triton's two scratch pointers.
    assert [k.strip(".")[1:] for k in kinds] == ["64", "64", "32", "64", "64"]
