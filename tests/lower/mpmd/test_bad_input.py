"""What `lower_mpmd` and the schedule's solver refuse, and what they say then."""

from __future__ import annotations

import jax
import pytest

import autoshard
from autoshard.lower.mpmd.accumulate import MicrobatchError
from autoshard.lower.mpmd.cut.stages import StageError
from autoshard.lower.mpmd.partition import partition_step
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.named import NAMED
from autoshard.solve.schedule.optimise import solve
from autoshard.solve.schedule.optimise.solve import InfeasibleLimitError
from autoshard.solve.schedule.task import Task
from autoshard.solve.schedule.timeline import simulate
from tests.lower.mpmd.cases import small_step, tiny_llama
from tests.lower.mpmd.runs import meshes_of


def refused(error, step, **options):
    with pytest.raises(error) as caught:
        autoshard.lower_mpmd(step.fn, *step.args, meshes=meshes_of(1), **options)
    return str(caught.value)


def test_more_stages_than_blocks():
    text = refused(StageError, small_step(2), stages=4)
    assert text == (
        "4 stages were asked for, but the program has 2 repeated blocks (layer_0, layer_1): ask "
        "for 1 to 2 stages, or name the scopes of every stage"
    )


def test_a_name_that_no_op_bears():
    text = refused(StageError, small_step(2), stages=[("layer_0",), ("layer_7",)])
    assert "'layer_7' (stage 1) is borne by no op; did you mean layer_1 or layer_0?" in text


def test_microbatches_that_do_not_divide():
    text = refused(MicrobatchError, tiny_llama(layers=2, microbatches=3))
    assert text.startswith("the batch cannot be cut into 3 equal microbatches:\n  * ")
    assert "int32[16,8] leaves 1 of its 16 examples over" in text


def test_a_limit_that_no_schedule_keeps_and_the_smallest_that_one_does():
    step = small_step(2, microbatches=4)
    instance = partition_step(step.fn, *step.args, stages=2).instance(2)
    with pytest.raises(InfeasibleLimitError) as caught:
        solve(instance.with_limit(100), time_limit=5)
    least = caught.value.smallest
    for mesh, needed in enumerate(least):
        assert (
            f"mesh {mesh} has a limit of 100, and one microbatch takes {needed} there; "
            f"the smallest limit that works is {needed}"
        ) in str(caught.value)
    outcome = solve(instance.with_limit(least), time_limit=5, threads=1)
    assert outcome.order is not None
    peaks = simulate(instance, outcome.order).peak_memory
    assert all(peak <= limit for peak, limit in zip(peaks, least, strict=True))
    for mesh in range(2):
        less = tuple(limit - (d == mesh) for d, limit in enumerate(least))
        with pytest.raises(InfeasibleLimitError):
            solve(instance.with_limit(less), time_limit=5)


def test_an_order_with_too_much_memory():
    step = small_step(2, microbatches=4)
    instance = partition_step(step.fn, *step.args, stages=2).instance(2)
    tight = instance.with_limit(instance.limit_named("1f1b"))
    with pytest.raises(ScheduleError, match=r"mesh 1 takes \d+ of memory at once, more than"):
        simulate(tight, NAMED["gpipe"](instance))


def test_merges_that_wait_for_themselves():
    if len(jax.devices()) < 2:
        pytest.skip("needs 2 devices")
    step = small_step(2, microbatches=1)
    with pytest.raises(ScheduleError) as caught:
        autoshard.lower_mpmd(
            step.fn,
            *step.args,
            meshes=meshes_of(1, 1),
            merge=[(Task("F", 0, 0), Task("BW", 0, 0))],
        )
    assert str(caught.value) == (
        "these merges, which would wait for themselves, cannot be used:\n"
        "  F0@0 + BW0@0 (mesh 0) -> transfer to mesh 1 -> BW0@1 (mesh 1)"
        " -> transfer to mesh 0 -> F0@0 + BW0@0 (mesh 0)"
    )
