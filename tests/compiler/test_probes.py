"""Reading modules as kernels, and what a probe can answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from autoshard.compiler.hlo.text import read_module
from autoshard.compiler.probes import Reading, orders_of, run_probe, types_of
from autoshard.compiler.target import why_missing
from autoshard.xla.habits.gpu_probes import X, f32, habit
from autoshard.xla.habits.records import Built, Habit

needs_gpu_compiler = pytest.mark.skipif(
    bool(why_missing("gpu")), reason=why_missing("gpu") or "installed"
)

MODULE = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner (p: bf16[8,4]) -> bf16[4,8] {
  %p = bf16[8,4]{1,0} parameter(0)
  ROOT %transpose = bf16[4,8]{1,0} transpose(%p), dimensions={1,0}
}

%fused (q: bf16[8,4]) -> (bf16[4,8], f32[]) {
  %q = bf16[8,4]{1,0} parameter(0)
  %nested = bf16[4,8]{1,0} fusion(%q), kind=kLoop, calls=%inner
  %zero = f32[] constant(0)
  %wide = f32[4,8]{1,0} convert(%nested)
  %total = f32[] reduce(%wide, %zero), dimensions={0,1}, to_apply=%add
  ROOT %both = (bf16[4,8]{1,0}, f32[]) tuple(%nested, %total)
}

%wrapped (r: bf16[4,8]) -> bf16[4,8] {
  %r = bf16[4,8]{0,1} parameter(0)
  ROOT %called = bf16[4,8]{0,1} negate(%r)
}

%body (state: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %state = (s32[], bf16[8,4]{1,0}) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %rows = bf16[8,4]{1,0} get-tuple-element(%state), index=1
  %next = s32[] copy(%count)
  %begin = (bf16[1,4]{1,0}, bf16[8,4]{1,0}) all-gather-start(%rows), dimensions={0}
  %end = bf16[8,4]{1,0} all-gather-done(%begin)
  ROOT %out = (s32[], bf16[8,4]{1,0}) tuple(%next, %end)
}

%condition (state: (s32[], bf16[8,4])) -> pred[] {
  %state = (s32[], bf16[8,4]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

ENTRY %main (x: bf16[8,4]) -> bf16[4,8] {
  %x = bf16[8,4]{1,0} parameter(0)
  %start = s32[] constant(0)
  %first = (s32[], bf16[8,4]{1,0}) tuple(%start, %x)
  %loop = (s32[], bf16[8,4]{1,0}) while(%first), condition=%condition, body=%body
  %left = bf16[8,4]{1,0} get-tuple-element(%loop), index=1
  %kernel = (bf16[4,8]{1,0}, f32[]) fusion(%left), kind=kLoop, calls=%fused
  %made = bf16[4,8]{1,0} get-tuple-element(%kernel), index=0
  %view = bf16[4,8]{0,1} bitcast(%made)
  ROOT %last = bf16[4,8]{0,1} call(%view), to_apply=%wrapped
}
"""


@pytest.fixture
def built() -> Reading:
    return Reading(read_module(MODULE))


def test_types_and_orders_of_shapes() -> None:
    shape = "(bf16[8,128]{0,1:T(8,128)(2,1)S(1)}, /*index=1*/f32[], s32[2,3,4]{1,2,0})"
    assert types_of(shape) == ("bf16[8,128]", "f32[]", "s32[2,3,4]")
    assert orders_of(shape) == ((1, 0), (), (0, 2, 1))


def test_loops_and_calls_are_looked_through(built: Reading) -> None:
    opcodes = [(one.opcode, one.depth, one.position) for one in built.kernels()]
    assert opcodes == [
        ("copy", 1, 0),
        ("all-gather-start", 1, 1),
        ("all-gather-done", 1, 2),
        ("fusion", 0, 3),
        ("negate", 0, 4),
    ]


def test_a_fusion_has_the_opcodes_of_all_inside_but_reducers(built: Reading) -> None:
    (kernel,) = built.kernels("transpose", "convert", "reduce")
    assert kernel.opcode == "fusion"
    assert "add" not in kernel.opcodes
    assert kernel.writes == ("bf16[4,8]", "f32[]")
    assert kernel.reads == ("bf16[8,4]",)
    assert " transpose(" in kernel.inside
    assert kernel.operands == ("loop",)


def test_kernels_by_types(built: Reading) -> None:
    assert [one.name for one in built.kernels(writes="bf16[4,*]")] == ["kernel", "called"]
    assert [one.name for one in built.kernels(reads="bf16[8,4]")] == ["begin", "end", "kernel"]
    assert not built.kernels(writes="bf16[4]")


def test_collectives_are_their_begins(built: Reading) -> None:
    assert [one.name for one in built.collectives()] == ["begin"]
    assert [one.name for one in built.collectives("all-gather")] == ["begin"]
    assert not built.collectives("all-reduce")


def test_without_figures_there_are_no_bytes(built: Reading) -> None:
    with pytest.raises(ValueError, match="only the module"):
        _ = built.peak_bytes


def one_kernel(reading: Any) -> Habit:
    return habit(
        "one-kernel",
        "A chain is one kernel.",
        "observed",
        lambda x: jnp.tanh(x) + 1,
        (f32(64, 32),),
        (X,),
        (X,),
        reading,
    )


def with_reading(given: Habit, reading: Any) -> Habit:
    assert given.probe is not None
    return replace(given, probe=replace(given.probe, reading=reading))


def test_no_probe() -> None:
    outcome = run_probe(Habit("gpu.unknown", "xla:gpu", "Nobody knows.", "observed"))
    assert (outcome.name, outcome.status) == ("gpu.unknown", "no probe")


@needs_gpu_compiler
def test_a_probe_holds_or_is_broken(tmp_path: Path) -> None:
    def claims(built: Built) -> bool:
        return [one.writes for one in built.kernels()] == [("f32[8,32]",)]

    given = one_kernel(claims)
    outcome = run_probe(given, cache=tmp_path)
    assert (outcome.status, outcome.detail) == ("holds", "")
    assert outcome.version.startswith("jax-cuda")

    inverted = run_probe(with_reading(given, lambda built: not claims(built)), cache=tmp_path)
    assert inverted.status == "broken"
    assert inverted.seconds < 10

    failing = run_probe(with_reading(given, lambda built: built.kernels()[7]), cache=tmp_path)
    assert failing.status == "broken"
    assert "IndexError" in failing.detail


@needs_gpu_compiler
def test_a_program_that_does_not_fit_its_shardings_is_broken(tmp_path: Path) -> None:
    given = one_kernel(lambda built: True)
    assert given.probe is not None
    outcome = run_probe(replace(given, probe=replace(given.probe, inputs=())), cache=tmp_path)
    assert outcome.status == "broken"
    assert "1 argument, but 0 shardings" in outcome.detail


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoshard.compiler.probes.why_missing", lambda kind: "not installed: x")
    outcome = run_probe(one_kernel(lambda built: True))
    assert (outcome.status, outcome.detail) == ("not installed", "not installed: x")
