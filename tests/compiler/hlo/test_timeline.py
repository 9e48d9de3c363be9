"""Two streams on schedules that can be reckoned by hand, and on random ones against laws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.compiler.hlo.collectives import Found, find
from autoshard.compiler.hlo.places import Place
from autoshard.compiler.hlo.schedule import Schedule, ScheduledComputation
from autoshard.compiler.hlo.text import read_module
from autoshard.compiler.hlo.timeline import Timeline, timeline
from autoshard.compiler.hlo.work import Work
from autoshard.plan.plan import MeshShape

MESH = MeshShape(("x", "y"), (2, 4))
GIGA = 1e9


@dataclass(frozen=True)
class ByBytes:
    """A second per byte of a collective, by kind; nothing for compute but what is asked for."""

    factors: Mapping[str, float] = field(default_factory=dict)
    compute: float = 0.0
    least: float = 0.0
    launch: float = 0.0

    def compute_seconds(self, work: Work) -> float:
        return self.compute

    def launch_seconds(self) -> float:
        return self.launch

    def copy_seconds(self, size: int) -> float:
        return float(size)

    def least_seconds(self, size: int) -> float:
        return self.least * size

    def transfer_seconds(self, direction: str, size: int) -> float:
        return 10.0 * size

    def collective_seconds(self, kind: str, found: Found, size: float) -> float:
        return self.factors.get(kind, 1.0) * size


HEAD = "HloModule m, is_scheduled=true, num_partitions=8\n\n"
BUSY = """\
%busy.{n} (p: f32[1]) -> f32[1] {{
  %p = f32[1]{{0}} parameter(0)
  ROOT %r = f32[1]{{0}} negate(%p)
}}

"""


def busy(name: str, operand: str, seconds: float, *, root: bool = False) -> str:
    """A fusion that takes so many seconds at a clock of 1 GHz."""
    cycles = f'"estimated_cycles":"{int(seconds * GIGA)}"'
    start = "  ROOT " if root else "  "
    return (
        f"{start}%{name} = f32[1]{{0}} fusion(%{operand}), kind=kLoop, calls=%busy.0, "
        f'backend_config={{"window_config":{{{cycles}}}}}\n'
    )


def run(body: str, prices: ByBytes | None = None, **options) -> Timeline:
    """The timeline of an entry computation with parameter p: f32[1], 4 bytes."""
    text = (
        f"{HEAD}{BUSY.format(n=0)}%sum (a: f32[], b: f32[]) -> f32[] {{\n"
        "  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %s = f32[] add(%a, %b)\n}\n\n"
        f"ENTRY %main (p: f32[1]) -> f32[1] {{\n  %p = f32[1]{{0}} parameter(0)\n{body}}}\n"
    )
    module = read_module(text)
    entry = Place(module, module.computations["main"])
    return timeline(entry, find(module, MESH), prices or ByBytes(), clock_hertz=GIGA, **options)


GROUPS = "replica_groups=[4,2]<=[2,4]T(1,0), channel_id=1, to_apply=%sum"


def test_compute_alone():
    found = run(busy("one", "p", 3) + busy("two", "one", 2, root=True))
    assert found == Timeline(5.0, 5.0, 0.0, 0.0, 1.0)


def test_a_synchronous_collective_blocks():
    body = f"  %r = f32[1]{{0}} all-reduce(%p), {GROUPS}\n" + busy("two", "r", 2, root=True)
    assert run(body) == Timeline(6.0, 2.0, 4.0, 4.0, 1.0)


@pytest.mark.parametrize(("between", "waited"), [(1.0, 3.0), (4.0, 0.0), (9.0, 0.0)])
def test_an_asynchronous_collective_hides_behind_compute(between, waited):
    body = (
        f"  %s = f32[1]{{0}} all-reduce-start(%p), {GROUPS}\n"
        + busy("one", "p", between)
        + "  %d = f32[1]{0} all-reduce-done(%s)\n"
        + busy("two", "d", 2, root=True)
    )
    found = run(body)
    assert found.seconds == between + waited + 2
    assert (found.collective_seconds, found.exposed_seconds) == (4.0, waited)


def test_collectives_wait_for_each_other():
    body = (
        f"  %s = f32[1]{{0}} all-reduce-start(%p), {GROUPS}\n"
        f"  %t = f32[1]{{0}} all-reduce-start(%p), {GROUPS}\n"
        "  %d = f32[1]{0} all-reduce-done(%s)\n"
        "  %e = f32[1]{0} all-reduce-done(%t)\n"
        + busy("one", "e", 1)
        + f"  ROOT %w = f32[1]{{0}} all-reduce(%one), {GROUPS}\n"
    )
    assert run(body) == Timeline(13.0, 1.0, 12.0, 12.0, 1.0)


def test_copies_within_the_device_run_beside():
    body = (
        "  %c = (f32[1]{0}, f32[1]{0}, u32[]) copy-start(%p)\n"
        + busy("one", "p", 1)
        + "  %d = f32[1]{0} copy-done(%c)\n"
        + busy("two", "d", 2, root=True)
    )
    assert run(body).seconds == 4 + 2
    assert run(body).exposed_seconds == 0


def test_what_the_compiler_gives_no_time_for_is_priced():
    body = busy("one", "p", 3) + "  ROOT %n = f32[1]{0} negate(%one)\n"
    found = run(body, ByBytes(compute=1.0))
    assert (found.seconds, found.known_share) == (4.0, 0.75)


def test_what_the_compiler_computes_again_is_told_apart():
    assert run(busy("one", "p", 3) + busy("a.remat2", "one", 2, root=True)).again_seconds == 2.0


def test_combined_values_are_one_collective():
    body = (
        f"  %r = (f32[1]{{0}}, f32[1]{{0}}) all-reduce(%p, %p), {GROUPS}\n"
        "  ROOT %g = f32[1]{0} get-tuple-element(%r), index=0\n"
    )
    assert run(body, ByBytes({"all_reduce": 10.0})).seconds == 80.0


def test_a_fused_reduction_and_slice_is_a_reduce_scatter():
    """The same pair costs an all-reduce where the slice is an instruction of its own."""
    fused = """\
%scatter (p: f32[8]) -> f32[4] {
  %p = f32[8]{0} parameter(0)
  %r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%sum
  %id = u32[] partition-id()
  %four = u32[] constant(4)
  %row = u32[] divide(%id, %four)
  %at = u32[] multiply(%row, %four)
  ROOT %s = f32[4]{0} dynamic-slice(%r, %at), dynamic_slice_sizes={4}
}

"""
    body = (
        "  %b = f32[8]{0} broadcast(%p), dimensions={}\n"
        "  ROOT %f = f32[4]{0} fusion(%b), kind=kCustom, calls=%scatter\n"
    )
    prices = ByBytes({"all_reduce": 2.0, "reduce_scatter": 1.0})

    def entry(text: str) -> Timeline:
        module = read_module(HEAD + SUM + text)
        place = Place(module, module.computations["main"])
        (one,) = find(module, MESH)
        assert (one.record.kind, one.record.axes) == ("reduce_scatter", ("x",))
        return timeline(place, [one], prices)

    main = f"ENTRY %main (p: f32[1]) -> f32[4] {{\n  %p = f32[1]{{0}} parameter(0)\n{body}}}\n"
    assert entry(fused + main).seconds == 32.0
    apart = fused.replace("%scatter (p", "ENTRY %main (p")
    assert entry(apart).seconds == 64.0


SUM = """\
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

"""

LOOP = (
    HEAD
    + BUSY.format(n=0)
    + """\
%body (s: (s32[], f32[1])) -> (s32[], f32[1]) {
  %s = (s32[], f32[1]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[1]{0} get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %j = s32[] add(%i, %one)
"""
    + busy("work", "x", 2)
    + """\
  ROOT %t = (s32[], f32[1]{0}) tuple(%j, %work)
}

%condition (s: (s32[], f32[1])) -> pred[] {
  %s = (s32[], f32[1]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(5)
  ROOT %c = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p: f32[1]) -> f32[1] {
  %p = f32[1]{0} parameter(0)
  %zero = s32[] constant(0)
  %t = (s32[], f32[1]{0}) tuple(%zero, %p)
  %w = (s32[], f32[1]{0}) while(%t), condition=%condition, body=%body
  %x = f32[1]{0} get-tuple-element(%w), index=1
"""
    + busy("after", "x", 3, root=True)
    + "}\n"
)


def test_a_loop_takes_its_body_as_often_as_it_turns():
    module = read_module(LOOP)
    entry = Place(module, module.computations["main"])
    found = timeline(entry, [], ByBytes(), clock_hertz=GIGA)
    assert found.seconds == 5 * 2 + 3


def test_the_compilers_own_timeline_goes_before_and_loops_come_on_top():
    module = read_module(LOOP)
    entry = Place(module, module.computations["main"])
    body = ScheduledComputation(7.0, {"work": 0.0}, {"work": 6.0})
    schedule = Schedule({"body": body})
    found = timeline(entry, [], ByBytes(), clock_hertz=GIGA, schedule=schedule)
    assert found.seconds == 5 * 7 + 3
    main = ScheduledComputation(4.0, {"w": 0.0, "after": 1.0}, {"w": 0.5, "after": 4.0})
    schedule = Schedule({"body": body, "main": main})
    found = timeline(entry, [], ByBytes(), clock_hertz=GIGA, schedule=schedule)
    assert found.seconds == 5 * 7 + 4


COPY = (
    "  %c = ((f32[1]{0}), f32[1]{0}, u32[]) fusion-start(%p), kind=kLoop, calls=%busy.0\n",
    "  %d = f32[1]{0} fusion-done(%c)\n",
)


@pytest.mark.parametrize(("work", "seconds"), [(1.0, 3 + 2), (9.0, 9 + 2)])
def test_a_kernel_with_a_start_and_a_done_runs_beside_the_others(work, seconds):
    body = COPY[0] + busy("one", "p", work) + COPY[1] + busy("two", "d", 2, root=True)
    assert run(body, ByBytes(compute=3.0)).seconds == seconds


@pytest.mark.parametrize(
    ("done", "price", "exposed"),
    [
        (52.0, 900.0, 51.0),  # nothing runs after its start: the compiler's own 51 us
        (52.0, 20.0, 51.0),
        (33.0, 900.0, 12.0),  # beside a kernel of 20 us: no more than from its start to its done
        (33.0, 30.0, 10.0),
        (33.0, 5.0, 0.0),
    ],
)
def test_kernels_wait_for_no_guess(done, price, exposed):
    """A copy of 5 ms from its start to its done is a guess, and no time of the step."""
    one = "  %one = f32[1]{0} fusion(%p), kind=kLoop, calls=%busy.0\n"
    hidden = done < 50
    sum_ = (
        f"  %s = f32[1]{{0}} all-reduce-start(%p), {GROUPS}\n",
        "  %e = f32[1]{0} all-reduce-done(%s)\n",
    )
    body = COPY[0] + sum_[0] + one * hidden + sum_[1] + one * (not hidden) + COPY[1]
    times = {"c": (0, 0.01), "s": (1, 2), "e": (done, done + 1), "d": (5000, 5000.01)}
    times["one"] = (2, 22) if hidden else (53, 73)
    starts, ends = ({name: 1e-6 * at[k] for name, at in times.items()} for k in (0, 1))
    main = ScheduledComputation(5000.01e-6, starts, ends)
    prices = ByBytes({"all_reduce": 1e-6 * price / 4}, compute=7e-6)
    found = run(
        f"{body}  ROOT %b = f32[1]{{0}} bitcast(%d)\n", prices, schedule=Schedule({"main": main})
    )
    assert found.exposed_seconds == pytest.approx(1e-6 * exposed)
    assert found.seconds == pytest.approx(1e-6 * (20 + exposed))


@given(
    st.lists(st.sampled_from(["compute", "whole", "start", "done"]), max_size=12),
    st.data(),
)
@settings(deadline=None)
def test_laws(steps, data):
    """Never faster than either stream alone, never slower than both in turn."""
    lines, open_starts, compute, communication = [], [], 0.0, 0.0
    for number, step in enumerate(steps):
        if step == "compute":
            seconds = data.draw(st.integers(1, 9))
            compute += seconds
            lines.append(busy(f"c{number}", "p", seconds))
        elif step == "done" and open_starts:
            start = open_starts.pop(data.draw(st.integers(0, len(open_starts) - 1)))
            lines.append(f"  %d{number} = f32[1]{{0}} all-reduce-done(%{start})\n")
        elif step in ("whole", "start"):
            suffix = "" if step == "whole" else "-start"
            lines.append(f"  %r{number} = f32[1]{{0}} all-reduce{suffix}(%p), {GROUPS}\n")
            communication += 4.0
            if step == "start":
                open_starts.append(f"r{number}")
    lines += [f"  %e{s} = f32[1]{{0}} all-reduce-done(%{s})\n" for s in open_starts]
    found = run("".join(lines) + "  ROOT %b = f32[1]{0} bitcast(%p)\n")
    assert found.compute_seconds == compute
    assert found.collective_seconds == communication
    assert max(compute, communication) <= found.seconds <= compute + communication
    assert found.seconds == compute + found.exposed_seconds


GATHERED = "replica_groups=[2,4]<=[8], channel_id=7, dimensions={0}, use_global_device_ids=true"
IN_A_LOOP = f"""\
{HEAD}{BUSY.format(n=0)}%begins (x: f32[1]) -> (f32[1], f32[4]) {{
  %x = f32[1]{{0}} parameter(0)
  %g = f32[4]{{0}} all-gather(%x), {GATHERED}
  ROOT %c = (f32[1]{{0}}, f32[4]{{0}}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}

%goes_on (x: f32[1]) -> (f32[1], f32[4]) {{
  %x = f32[1]{{0}} parameter(0)
  %g = f32[4]{{0}} all-gather(%x), {GATHERED}
  %n = f32[1]{{0}} negate(%x)
  ROOT %t = (f32[1]{{0}}, f32[4]{{0}}) tuple(%n, %g)
}}

%ends (x: f32[1]) -> f32[4] {{
  %x = f32[1]{{0}} parameter(0)
  %g = f32[4]{{0}} all-gather(%x), {GATHERED}
  ROOT %c = f32[4]{{0}} custom-call(%g), custom_call_target="AsyncCollectiveDone"
}}

%body (s: (s32[], f32[1])) -> (s32[], f32[1]) {{
  %s = (s32[], f32[1]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[1]{{0}} get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %f = (f32[1]{{0}}, f32[4]{{0}}) fusion(%x), kind=kOutput, calls=%goes_on, \
backend_config={{"window_config":{{"estimated_cycles":"3000000000"}}}}
  %y = f32[1]{{0}} get-tuple-element(%f), index=0
  ROOT %t = (s32[], f32[1]{{0}}) tuple(%next, %y)
}}

%condition (s: (s32[], f32[1])) -> pred[] {{
  %s = (s32[], f32[1]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %end = s32[] constant(5)
  ROOT %c = pred[] compare(%i, %end), direction=LT
}}

ENTRY %main (p: f32[1]) -> f32[4] {{
  %p = f32[1]{{0}} parameter(0)
  %zero = s32[] constant(0)
  %a = (f32[1]{{0}}, f32[4]{{0}}) fusion(%p), kind=kCustom, calls=%begins
  %s = (s32[], f32[1]{{0}}) tuple(%zero, %p)
  %w = (s32[], f32[1]{{0}}) while(%s), condition=%condition, body=%body
  %y = f32[1]{{0}} get-tuple-element(%w), index=1
  ROOT %d = f32[4]{{0}} fusion(%y), kind=kCustom, calls=%ends
}}
"""


def test_a_gather_that_goes_on_in_a_loops_kernels_is_one_and_hides_behind_them():
    module = read_module(IN_A_LOOP)
    found = find(module, MESH)
    (begun,) = [one.record for one in found if one.event.phase != "done"]
    assert (begun.opcode, begun.count) == ("all-gather", 1)
    entry = Place(module, module.computations["main"])
    result = timeline(entry, found, ByBytes(), clock_hertz=GIGA)
    assert result == Timeline(16.0, 15.0, 16.0, 1.0, 1.0)
