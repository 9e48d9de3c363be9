"""The split of a stage's price adds up, and bytes between tasks are those of the cut."""

from __future__ import annotations

import pytest

from autoshard.lower.mpmd.cut.saving import StageChoice
from autoshard.lower.mpmd.partition import partition_step, trace_step
from autoshard.machine.cluster import load_cluster
from autoshard.machine.load import load
from autoshard.program.trace import trace
from autoshard.search.meshes.bounds.ideal import ideal_seconds
from autoshard.search.meshes.price import StagePrice, price
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.problem import sent_bytes
from autoshard.search.meshes.stage_program import stage_program
from autoshard.search.search import search
from tests.lower.mpmd.cases import small_step
from tests.search.meshes.chains import chains


def cut(**sizes):
    step = small_step(scan=True, **sizes)
    return step, partition_step(step.fn, *step.args, stages=2, donate_argnums=(0, 1))


@pytest.mark.parametrize("mode", ["fused", "split"])
def test_tasks_and_update_add_up_to_the_step(mode):
    _, partition = cut()
    machine = load("h100-1")
    for stage in range(2):
        program = stage_program(partition, stage, mode)
        traced = program.traced()
        plan = search(traced, machine, mesh={"x": 1}, baselines=False)
        found = price(plan, traced, machine, program.arguments)
        assert set(found.seconds) == ({"F", "BW"} if mode == "fused" else {"F", "B", "W"})
        assert found.busy_seconds(4) == pytest.approx(plan.estimate.step_seconds, rel=1e-9)
        whole = partition.cut.bytes(partition.cut.kept(stage))
        heap = 1 + machine.chip.compiler.heap_overhead
        assert whole * 0.5 <= found.kept_bytes <= whole * heap * 1.5


def test_transfers_of_a_microbatch_are_hidden_alike_however_many_there_are():
    found = []
    for count in (1, 2, 8):
        step = chains(count, rows=4096)
        traced = trace_step(step.fn, *step.args, **step.options)
        away = StageChoice(None, frozenset(["layers/carry"]))
        partition = traced.cut((4, 4), saved=lambda _, away=away: [away] * 2)
        machine = load("h100-1")
        program = stage_program(partition, 0, "fused")
        plan = search(program.traced(), machine, mesh={"x": 1}, baselines=False)
        assert plan.transfers
        found.append(price(plan, program.traced(), machine, program.arguments))
    for one in found[1:]:
        assert one.seconds == pytest.approx(found[0].seconds)
        assert one.host_bytes == found[0].host_bytes == 4 * 4096 * 16 * 4


def test_equal_stages_are_planned_once():
    step = small_step(scan=True, layers=6)
    partition = partition_step(step.fn, *step.args, stages=6, donate_argnums=(0, 1))
    machine, pricer = load("h100-1"), Pricer()
    for stage in range(1, 5):
        program = stage_program(partition, stage, "fused")
        found = pricer.price(program, machine, None, 1e9, 10)
        assert isinstance(found, StagePrice)
    assert len(pricer.known) == 1


def test_a_stage_is_sent_the_activations_of_a_microbatch():
    _, partition = cut()
    # 4 examples a microbatch, 8 wide, float32: forward to stage 1, and back to stage 0.
    sizes = sent_bytes(partition)
    assert sizes[0, 1] >= 4 * 8 * 4
    assert sizes[1, 0] >= 4 * 8 * 4


def test_no_work_is_shared_better_than_perfectly():
    step, _ = cut()
    program = trace(step.fn, *step.args, donate_argnums=(0, 1))
    one = ideal_seconds(program, load_cluster("2 x h100-1"))
    mixed = ideal_seconds(program, load_cluster("h100-1 + a100-1"))
    slow = ideal_seconds(program, load_cluster("2 x a100-1"))
    four = ideal_seconds(program, load_cluster("4 x h100-1"))
    assert four == pytest.approx(one / 2)
    assert one <= mixed <= slow
