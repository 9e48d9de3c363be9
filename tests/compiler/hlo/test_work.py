"""What instructions do, against XLA's own cost analysis and against sizes known beforehand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.compiler.hlo.places import walk
from autoshard.compiler.hlo.text import read_module
from autoshard.compiler.hlo.work import Work, work


def total(text: str) -> Work:
    """The work of a module: of its entry, loops by their bodies."""
    module = read_module(text)
    flops, size, dtype = 0.0, 0, ""
    for place in walk(module):
        if place.caller is not None and place.caller[1].opcode in ("fusion", "reduce"):
            continue
        for instruction in place.computation.instructions:
            if instruction.opcode in ("while", "call", "conditional"):
                continue
            done = work(module, place.computation, instruction)
            flops += place.count * done.flops
            size += place.count * done.bytes
            dtype = done.dtype or dtype
    return Work(flops, dtype, size)


def hlo(function, *shapes, dtype=jnp.float32) -> str:
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return jax.jit(function).lower(*structs).as_text("hlo")


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (lambda a, b: a @ b, [(8, 32), (32, 64)], 2 * 8 * 32 * 64),
        (
            lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
            [(4, 8, 16), (4, 16, 32)],
            2 * 4 * 8 * 16 * 32,
        ),
        (
            lambda x, k: lax.conv_general_dilated(
                x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            ),
            [(2, 16, 16, 8), (3, 3, 8, 32)],
            2 * (2 * 16 * 16 * 32) * (3 * 3 * 8),
        ),
        (
            lambda x, k: lax.conv_general_dilated(
                x,
                k,
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=8,
            ),
            [(2, 16, 16, 8), (3, 3, 1, 8)],
            2 * (2 * 16 * 16 * 8) * (3 * 3),
        ),
        (
            lambda x, w: lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0],
            [(8, 16), (5, 16, 16)],
            5 * 2 * 8 * 16 * 16,
        ),
        (lambda x: jnp.sin(x) * 2, [(64, 64)], 0),
    ],
)
def test_flops(function, shapes, flops):
    found = total(hlo(function, *shapes))
    assert found.flops == flops
    assert found.dtype == ("f32" if flops else "")


def test_flops_of_a_real_step_are_near_xlas_own():
    """XLA counts elementwise operations too; without loops the matmuls are nearly all there is."""

    def loss(weights, x):
        for w in weights:
            x = jnp.maximum(x @ w, 0)
        return jnp.sum(x)

    weights = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 4
    x = jax.ShapeDtypeStruct((128, 256), jnp.float32)
    compiled = jax.jit(jax.grad(loss)).lower(weights, x).compile()
    theirs = compiled.cost_analysis()["flops"]
    mine = total(compiled.as_text()).flops
    assert mine == 2 * 128 * 256 * 256 * (4 + 4 + 3)
    assert mine <= theirs <= 1.05 * mine


FUSED = """\
HloModule fused

%slice_and_add (p: f32[10,64], q: f32[64], i: s32[]) -> f32[64] {
  %p = f32[10,64]{1,0} parameter(0)
  %q = f32[64]{0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %row = f32[1,64]{1,0} dynamic-slice(%p, %i, %zero), dynamic_slice_sizes={1,64}
  %flat = f32[64]{0} bitcast(%row)
  ROOT %sum = f32[64]{0} add(%flat, %q)
}

%update (p: f32[10,64], q: f32[1,64], i: s32[]) -> f32[10,64] {
  %p = f32[10,64]{1,0} parameter(0)
  %q = f32[1,64]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %u = f32[10,64]{1,0} dynamic-update-slice(%p, %q, %i, %zero)
}

%update_and_slice (p: f32[10,64], q: f32[1,64], i: s32[]) -> f32[1,64] {
  %p = f32[10,64]{1,0} parameter(0)
  %b = f32[10,64]{1,0} bitcast(%p)
  %q = f32[1,64]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %u = f32[10,64]{1,0} dynamic-update-slice(%b, %q, %i, %zero)
  %row = f32[1,64]{1,0} dynamic-slice(%u, %i, %zero), dynamic_slice_sizes={1,64}
  ROOT %e = f32[1,64]{1,0} exponential(%row)
}

%two (p: f32[8,16], q: f32[16,4]) -> (f32[8,4], f32[8,16]) {
  %p = f32[8,16]{1,0} parameter(0)
  %q = f32[16,4]{1,0} parameter(1)
  %d = f32[8,4]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %n = f32[8,16]{1,0} negate(%p)
  ROOT %t = (f32[8,4]{1,0}, f32[8,16]{1,0}) tuple(%d, %n)
}

%sliced_product (a: f32[8,16], c: f32[10,16,4], i: s32[]) -> (f32[8,4], s8[33554432]) {
  %a = f32[8,16]{1,0} parameter(0)
  %c = f32[10,16,4]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %row = f32[1,16,4]{2,1,0} dynamic-slice(%c, %i, %zero, %zero), dynamic_slice_sizes={1,16,4}
  %w = f32[16,4]{1,0} bitcast(%row)
  ROOT %d = (f32[8,4]{1,0}, s8[33554432]{0}) custom-call(%a, %w), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
}

%sliced_product_apart (a: f32[8,16], c: f32[10,16,4], i: s32[]) -> (f32[8,4], s8[33554432]) {
  %a = f32[8,16]{1,0} parameter(0)
  %c = f32[10,16,4]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %row = f32[1,16,4]{2,1,0} dynamic-slice(%c, %i, %zero, %zero), dynamic_slice_sizes={1,16,4}
  %w = f32[16,4]{1,0} bitcast(%row)
  %d = (f32[8,4]{1,0}, s8[33554432]{0}) custom-call(%a, %w), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
  %e = f32[8,4]{1,0} get-tuple-element(%d), index=0
  %x = s8[33554432]{0} get-tuple-element(%d), index=1
  ROOT %t = (f32[8,4]{1,0}, s8[33554432]{0}) tuple(%e, %x)
}

ENTRY %main (p: f32[10,64], q: f32[64], r: f32[1,64], i: s32[], a: f32[8,16], b: f32[16,4], c: f32[10,16,4]) -> f32[] {
  %p = f32[10,64]{1,0} parameter(0)
  %q = f32[64]{0} parameter(1)
  %r = f32[1,64]{1,0} parameter(2)
  %i = s32[] parameter(3)
  %a = f32[8,16]{1,0} parameter(4)
  %b = f32[16,4]{1,0} parameter(5)
  %f = f32[64]{0} fusion(%p, %q, %i), kind=kLoop, calls=%slice_and_add
  %u = f32[10,64]{1,0} fusion(%p, %r, %i), kind=kLoop, calls=%update
  %w = f32[1,64]{1,0} fusion(%p, %r, %i), kind=kLoop, calls=%update_and_slice
  %t = (f32[8,4]{1,0}, f32[8,16]{1,0}) fusion(%a, %b), kind=kOutput, calls=%two
  %g = f32[8,4]{1,0} custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
  %c = f32[10,16,4]{2,1,0} parameter(6)
  %k = (f32[8,4]{1,0}, s8[33554432]{0}) fusion(%a, %c, %i), kind=kCustom, calls=%sliced_product
  %l = (f32[8,4]{1,0}, s8[33554432]{0}) fusion(%a, %c, %i), kind=kCustom, calls=%sliced_product_apart
  %h = (f32[8,4]{1,0}, s8[33554432]{0}) custom-call(%a, %b), custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}
  %s = f32[1,64]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,64}
  %v = f32[10,64]{1,0} dynamic-update-slice(%p, %r, %i, %i)
  %n = f32[64]{0} negate(%q)
  ROOT %z = f32[] constant(0)
}
"""  # noqa: E501


@pytest.mark.parametrize(
    ("name", "flops", "size"),
    [
        ("f", 0, 4 * (64 + 64 + 64 + 1)),
        ("u", 0, 4 * (64 + 64 + 1)),
        ("w", 0, 4 * (64 + 64 + 64 + 1)),  # the result, the slice, the update, the index
        ("t", 2 * 8 * 4 * 16, 4 * (8 * 4 + 8 * 16 + 8 * 16 + 16 * 4)),
        ("g", 2 * 8 * 4 * 16, 4 * (8 * 4 + 8 * 16 + 16 * 4)),
        ("h", 2 * 8 * 4 * 16, 4 * (8 * 4 + 8 * 16 + 16 * 4)),  # without the library's workspace
        ("k", 2 * 8 * 4 * 16, 4 * (8 * 4 + 8 * 16 + 16 * 4 + 1)),  # of a slice, likewise
        ("l", 2 * 8 * 4 * 16, 4 * (8 * 4 + 8 * 16 + 16 * 4 + 1)),
        ("s", 0, 4 * 2 * 64),
        ("v", 0, 4 * 2 * 64),
        ("n", 0, 4 * 2 * 64),
        ("p", 0, 0),
    ],
)
def test_bytes_that_reach_memory(name, flops, size):
    module = read_module(FUSED)
    main = module.computations["main"]
    found = work(module, main, main.by_name[name])
    assert (found.flops, found.bytes) == (flops, size)


def test_transcendental_functions_are_counted_in_exponentials():
    module = read_module(FUSED)
    main = module.computations["main"]
    assert {
        name: work(module, main, main.by_name[name]).exponentials for name in ("w", "n", "t")
    } == {"w": 64, "n": 0, "t": 0}
    sines = hlo(lambda x: jnp.sin(x) + jnp.tanh(x), (8, 16))
    module = read_module(sines)
    entry = module.computations[module.entry]
    found = sum(work(module, entry, one).exponentials for one in entry.instructions)
    assert found == 8 * 16 * (8.0 + 2.3)


TURNED = """\
HloModule turned

%turn (p: bf16[64,64,4], q: bf16[64,4,64]) -> bf16[64,4,64] {
  %p = bf16[64,64,4]{2,1,0} parameter(0)
  %q = bf16[64,4,64]{2,1,0} parameter(1)
  %t = bf16[64,4,64]{2,1,0} transpose(%p), dimensions={0,2,1}
  ROOT %sum = bf16[64,4,64]{2,1,0} add(%t, %q)
}

ENTRY %main (p: bf16[64,64,4], q: bf16[64,4,64]) -> bf16[64,4,64] {
  %p = bf16[64,64,4]{2,1,0} parameter(0)
  %q = bf16[64,4,64]{2,1,0} parameter(1)
  ROOT %f = bf16[64,4,64]{2,1,0} fusion(%p, %q), kind=kLoop, calls=%turn
}
"""


@pytest.mark.parametrize(("kind", "operands"), [("kLoop", 2), ("kCustom", 1)])
def test_a_loop_reads_all_its_operands_out_of_order_and_triton_what_is_transposed(kind, operands):
    module = read_module(TURNED.replace("kLoop", kind))
    main = module.computations["main"]
    assert work(module, main, main.root).scattered == operands * 64 * 64 * 4
