"""Transfers to the host and back in modules of both compilers, small and written by hand."""

from __future__ import annotations

from autoshard.compiler.hlo.text import read_module
from autoshard.compiler.hlo.transfers import transfers

ON_TPU = """HloModule m, is_scheduled=true, num_partitions=8

%body (p: (s32[], f32[4,8], f32[3,4,8])) -> (s32[], f32[4,8], f32[3,4,8]) {
  %p = (s32[]{:T(128)}, f32[4,8]{1,0:T(8,128)}, f32[3,4,8]{2,1,0:T(8,128)S(5)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %stack = f32[3,4,8]{2,1,0:T(8,128)S(5)} get-tuple-element(%p), index=2
  %part = f32[1,4,8]{2,1,0:T(8,128)} bitcast(%x)
  %begin = ((f32[3,4,8]{2,1,0:T(8,128)S(5)}, f32[1,4,8]{2,1,0:T(8,128)}, s32[]{:T(128)}, \
s32[]{:T(128)}, s32[]{:T(128)}), f32[3,4,8]{2,1,0:T(8,128)S(5)}, u32[]{:S(2)}) \
dynamic-update-slice-start(%stack, %part, %i, %i, %i)
  %end = f32[3,4,8]{2,1,0:T(8,128)S(5)} dynamic-update-slice-done(%begin)
  ROOT %t = (s32[]{:T(128)}, f32[4,8]{1,0:T(8,128)}, f32[3,4,8]{2,1,0:T(8,128)S(5)}) \
tuple(%i, %x, %end)
}

%condition (p: (s32[], f32[4,8], f32[3,4,8])) -> pred[] {
  %p = (s32[]{:T(128)}, f32[4,8]{1,0:T(8,128)}, f32[3,4,8]{2,1,0:T(8,128)S(5)}) parameter(0)
  ROOT %less = pred[] constant(true)
}

ENTRY %main (a: f32[4,8], z: f32[3,4,8], m: f32[16]) -> (f32[4,8], f32[16]) {
  %a = f32[4,8]{1,0:T(8,128)} parameter(0)
  %z = f32[3,4,8]{2,1,0:T(8,128)S(5)} parameter(1)
  %m = f32[16]{0:T(128)S(5)} parameter(2)
  %fetch = (f32[16]{0:T(128)}, f32[16]{0:T(128)S(5)}, u32[]{:S(2)}) copy-start(%m)
  %zero = s32[]{:T(128)} constant(0)
  %fast = (f32[4,8]{1,0:T(8,128)S(1)}, f32[4,8]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)
  %fasted = f32[4,8]{1,0:T(8,128)S(1)} copy-done(%fast)
  %t = (s32[]{:T(128)}, f32[4,8]{1,0:T(8,128)}, f32[3,4,8]{2,1,0:T(8,128)S(5)}) \
tuple(%zero, %a, %z)
  %loop = (s32[]{:T(128)}, f32[4,8]{1,0:T(8,128)}, f32[3,4,8]{2,1,0:T(8,128)S(5)}) while(%t), \
condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %fetched = f32[16]{0:T(128)} copy-done(%fetch)
  %kept = f32[3,4,8]{2,1,0:T(8,128)S(5)} get-tuple-element(%loop), index=2
  %slice = ((f32[3,4,8]{2,1,0:T(8,128)S(5)}, s32[], s32[], s32[]), f32[1,4,8]{2,1,0:T(8,128)}, \
u32[]{:S(2)}) dynamic-slice-start(%kept, %zero, %zero, %zero)
  %sliced = f32[1,4,8]{2,1,0:T(8,128)} dynamic-slice-done(%slice)
  %y = f32[4,8]{1,0:T(8,128)} bitcast(%sliced)
  %send = (f32[16]{0:T(128)S(5)}, f32[16]{0:T(128)}, u32[]{:S(2)}) copy-start(%fetched)
  %sent = f32[16]{0:T(128)S(5)} copy-done(%send)
  ROOT %out = (f32[4,8]{1,0:T(8,128)}, f32[16]{0:T(128)S(5)}) tuple(%y, %sent)
}
"""

ON_GPU = """HloModule m, is_scheduled=true, num_partitions=8

%update (a: f32[3,4], b: f32[1,4], i: s32[]) -> f32[3,4] {
  %a = f32[3,4]{1,0:S(5)} parameter(0)
  %b = f32[1,4]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %dus = f32[3,4]{1,0:S(5)} dynamic-update-slice(%a, %b, %i, %i)
}

ENTRY %main (s: f32[3,4], x: f32[1,4]) -> f32[3,4] {
  %s = f32[3,4]{1,0:S(5)} parameter(0)
  %x = f32[1,4]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %begin = ((f32[3,4]{1,0:S(5)}, f32[1,4]{1,0}, s32[]), f32[3,4]{1,0:S(5)}, u32[]) \
fusion-start(%s, %x, %zero), kind=kCustom, calls=%update
  %end = f32[3,4]{1,0:S(5)} fusion-done(%begin)
  %copied = f32[3,4]{1,0} copy(%end)
  ROOT %again = f32[3,4]{1,0:S(5)} copy(%copied)
}
"""


def found(text: str) -> list[tuple[str, int, int]]:
    return [(one.kind, one.bytes, one.count) for one in transfers(read_module(text))]


def test_parts_of_stacks_and_whole_arrays_are_found() -> None:
    assert found(ON_TPU) == [
        ("from_host", 64, 1),
        ("to_host", 128, 3),
        ("from_host", 128, 1),
        ("to_host", 64, 1),
    ]


def test_fusions_that_have_a_start_and_copies_that_have_none() -> None:
    assert found(ON_GPU) == [("to_host", 16, 1), ("from_host", 48, 1), ("to_host", 48, 1)]
