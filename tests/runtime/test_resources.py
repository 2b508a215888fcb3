from __future__ import annotations

import pytest
from sample_kernels import norm_kernel, spilling_kernel, wide_kernel

from fuseopt.runtime import resources
from fuseopt.runtime.compile import Target, compile_kernel
from fuseopt.runtime.resources import access_widths, read_resources


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_a_lean_kernel_does_not_spill(store, arch):
    found = read_resources(compile_kernel(norm_kernel(1024), Target("cuda", arch), store))
    assert 0 < found.registers < 128
    assert (found.stack_bytes, found.spill_loads, found.spill_stores) == (0, 0, 0)
    assert found.spills is False
    assert found.static_shared_bytes == (0 if arch == 80 else 1024)
    assert 0 < found.dynamic_shared_bytes <= 64


def test_a_kernel_that_spills_is_found_out(store):
    found = read_resources(compile_kernel(spilling_kernel(), Target.parse("sm_90"), store))
    assert found.stack_bytes > 1000
    assert found.spill_loads > 100
    assert found.spill_stores > 100
    assert found.spills is True


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_alignment_decides_the_width_of_access(store, arch):
    target = Target("cuda", arch)
    aligned = read_resources(compile_kernel(norm_kernel(1024), target, store))
    assert aligned.load_bytes == aligned.store_bytes == (16,)
    assert (aligned.widest_load, aligned.widest_store) == (16, 16)
    loose = read_resources(compile_kernel(norm_kernel(1024, aligned=False), target, store))
    assert (loose.load_bytes, loose.store_bytes) == ((2,), (2,))


def test_widths_are_read_from_every_form_of_access():
    ptx = """
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    ld.global.L1::evict_last.L2::cache_hint.v2.b64 { %rd1, %rd2 }, [ %rd1 + 0 ], %rd7;
    ld.global.b16 { %rs1 }, [ %rd1 ];
    ld.volatile.global.u8 %rs1, [ %rd1 ];
    ld.global.v8.b32 { %r1 }, [ %rd1 ];
    ld.shared.v4.b32 { %r1 }, [ %r2 ];
    ld.param.b64 %rd1, [norm_param_0];
    @%p2 st.global.L1::evict_first.v2.b32 [ %rd3 + 0 ], { %r1, %r2 };
    cp.async.cg.shared.global [ %r5 + 0 ], [ %rd5 + 0 ], 0x8, %r6;
    st.shared.b32 [ %r9 + 0 ], %r8;
    """
    assert access_widths(ptx) == ((1, 2, 8, 16, 32), (8,))
    assert access_widths("ld.global.L1::evict_last.L2::cache_hint.v2.b64 {") == ((16,), ())
    assert access_widths("") == ((), ())


def test_figures_are_absent_where_a_tool_is(store, monkeypatch):
    binary = compile_kernel(wide_kernel(2), Target.parse("sm_90"), store)
    monkeypatch.setattr(resources, "_run", lambda *args: None)
    found = read_resources(binary)
    assert (found.registers, found.stack_bytes, found.spills) == (None, None, None)
    assert found.widest_load == 4
