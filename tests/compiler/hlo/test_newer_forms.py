"""Forms of newer compilers, read as those that are known."""

from __future__ import annotations

import pytest

from autoshard.compiler.hlo.events import events
from autoshard.compiler.hlo.places import walk
from autoshard.compiler.hlo.text import read_module

JOINED = """\
HloModule joined, is_scheduled=true, num_partitions=8, replica_count=1

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %all-gather.3 = f32[64]{0} all-gather(%p), channel_id=1, replica_groups=[1,8]<=[8], \
dimensions={0}, use_global_device_ids=true, scheduling_name="all-gather-start"
  %all-reduce.1 = f32[64]{0} all-reduce(%all-gather.3), channel_id=2, replica_groups=[1,8]<=[8], \
use_global_device_ids=true, to_apply=%add, scheduling_name="all-reduce-start.2"
  ROOT %reduce-scatter = f32[8]{0} reduce-scatter(%all-reduce.1), channel_id=3, \
replica_groups=[1,8]<=[8], use_global_device_ids=true, dimensions={0}, to_apply=%add
}
"""


def test_collectives_scheduled_as_pairs_are_pairs():
    computation = read_module(JOINED).computations["main"]
    assert [(i.name, i.opcode, i.operands) for i in computation.instructions] == [
        ("p", "parameter", ()),
        ("all-gather-start", "all-gather-start", ("p",)),
        ("all-gather-done", "all-gather-done", ("all-gather-start",)),
        ("all-reduce-start.2", "all-reduce-start", ("all-gather-done",)),
        ("all-reduce-done.2", "all-reduce-done", ("all-reduce-start.2",)),
        ("reduce-scatter", "reduce-scatter", ("all-reduce-done.2",)),
    ]
    shapes = {i.name: i.shape_text for i in computation.instructions}
    assert shapes["all-gather-start"] == "((f32[8]{0}), f32[64]{0})"
    assert shapes["all-gather-done"] == "f32[64]{0}"
    assert shapes["all-reduce-start.2"] == shapes["all-reduce-done.2"] == "f32[64]{0}"
    assert [i.name for i in computation.instructions if i.is_root] == ["reduce-scatter"]


KERNEL = """\
HloModule kernel, is_scheduled=true, num_partitions=8, replica_count=1

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%kernel (q: f32[8]) -> f32[8] {
  %q = f32[8]{0} parameter(0)
  ROOT %all-reduce = f32[8]{0} all-reduce(%q), channel_id=1, replica_groups=[1,8]<=[8], \
use_global_device_ids=true, to_apply=%add
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %start = ((f32[8]{0}), f32[8]{0}) WRAPPING(%p), KIND calls=%kernel
  ROOT %done = f32[8]{0} DONE(%start)
}
"""


@pytest.mark.parametrize(
    ("opcode", "kind"), [("async", ""), ("fusion", "kind=kCustom,")], ids=["async", "fusion"]
)
def test_what_wraps_a_collective_starts_and_ends_it(opcode, kind):
    text = KERNEL.replace("WRAPPING", f"{opcode}-start").replace("DONE", f"{opcode}-done")
    module = read_module(text.replace("KIND ", kind and f"{kind} "))
    (place,) = [p for p in walk(module) if p.computation.name == "main"]
    start, done = events(place)
    assert [(e.phase, e.instruction.name, e.collective.opcode) for e in (start, done)] == [
        ("start", "start", "all-reduce"),
        ("done", "done", "all-reduce"),
    ]
    assert done.partner == "start"
