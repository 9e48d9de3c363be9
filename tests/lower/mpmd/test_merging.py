"""Merged programs: fewer dispatches, the same numbers; merges that wait for themselves."""

from __future__ import annotations

import jax
import pytest

from autoshard.lower.mpmd.instructions import Merged, Run
from autoshard.lower.mpmd.place import batch_sharded
from autoshard.search.meshes.lower_step import lower_mpmd
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.merging import forward_with_backward
from autoshard.solve.schedule.task import Task
from tests.lower.mpmd.cases import small_step
from tests.lower.mpmd.runs import lowered_and_differences, meshes_of

TWO = pytest.mark.skipif(len(jax.devices()) < 4, reason="needs 4 devices")


def runs(lowered) -> int:
    return sum(isinstance(one, Run) for one in lowered.script.instructions)


@TWO
def test_by_default_the_last_stage_is_one_program_a_microbatch():
    step = small_step(2, microbatches=4)
    apart, _ = lowered_and_differences(step, meshes_of(1, 1), merge=(), steps=1)
    lowered, differences = lowered_and_differences(step, meshes_of(1, 1), steps=2)
    assert differences == []
    assert runs(apart) - runs(lowered) == 4
    merged = [unit for unit in lowered.script.units if isinstance(unit, Merged)]
    assert [unit.name for unit in merged] == ["F1+BW1"]  # one for all microbatches
    assert len(lowered.script.units) < len(apart.script.units)
    assert lowered.merges == tuple((Task("F", 1, k), Task("BW", 1, k)) for k in range(4))


@TWO
@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("zb-h1", {}),
        ("interleaved", {"stages": 4}),
        ("zb-v", {"stages": 4, "placement": (0, 1, 1, 0)}),
    ],
)
def test_neighbours_of_any_stages_and_microbatches_are_merged(schedule, options):
    step = small_step(4, microbatches=4, clip=0.1)

    def rule(left, right):
        kinds = left.task.kind + right.task.kind
        return kinds in ("WW", "BW") or (kinds == "FF" and left.stage == right.stage)

    lowered, differences = lowered_and_differences(
        step, meshes_of(2, 2), schedule=schedule, merge=rule, steps=2, **options
    )
    assert differences == []
    assert lowered.merges
    assert runs(lowered) < sum(isinstance(one, Run) for one in lowered.unmerged.instructions)


def test_merges_that_wait_for_themselves():
    if len(jax.devices()) < 3:
        pytest.skip("needs 3 devices")
    step = small_step(3, microbatches=1)
    with pytest.raises(ScheduleError) as caught:
        lower_mpmd(
            step.fn,
            *step.args,
            meshes=meshes_of(1, 1, 1),
            layout=batch_sharded,
            merge=lambda left, right: left.stage in (0, 1),
        )
    around = "F0@0 + BW0@0 (mesh 0) -> transfer to mesh 1 -> F0@1 + BW0@1 (mesh 1)"
    text = str(caught.value)
    assert text.startswith(
        f"these merges, which would wait for themselves, cannot be used:\n  {around}"
    )
    assert text.count("\n") == 2  # both are named
    lower_mpmd(
        step.fn,
        *step.args,
        meshes=meshes_of(1, 1, 1),
        layout=batch_sharded,
        merge=forward_with_backward(2),
    )
