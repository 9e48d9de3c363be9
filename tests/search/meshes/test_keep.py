"""What each stage saves: by memory, as brute force says, and with the numbers of the plain step."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import jax
import pytest

from autoshard.lower.mpmd.cut.saving import StageChoice, bare
from autoshard.lower.mpmd.partition import trace_step
from autoshard.lower.numbers.double import wide, widened
from autoshard.lower.numbers.numeric import compare_outputs
from autoshard.machine.cluster import load_cluster
from autoshard.models import training
from autoshard.plan.plan import PlanError
from autoshard.program.keep import KeepError
from autoshard.search.meshes.bounds.ranking import Ranking
from autoshard.search.meshes.keep.chosen import CHOICE_GAP, Chosen, choose_saved
from autoshard.search.meshes.keep.promising import promising
from autoshard.search.meshes.keep.titles import WRITTEN
from autoshard.search.meshes.lower import lower_plan
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.problem import (
    TICK,
    MemoryShortageError,
    outer_seconds,
    schedule_problem,
)
from autoshard.search.meshes.report import format_pipeline
from autoshard.search.meshes.request import request_of
from autoshard.search.meshes.search import search_meshes
from autoshard.search.meshes.stage_prices import StagePrices
from autoshard.search.meshes.stage_program import stage_programs
from autoshard.search.meshes.verify import numeric_differences
from autoshard.solve.schedule.optimise import solve
from tests.lower.mpmd.cases import small_step, tiny_llama
from tests.lower.mpmd.runs import BOUNDS, FLOOR
from tests.search.meshes.chains import DEPTH, LAYERS, chains

FOUR = "4 x h100-1"
AMPLE, TIGHT = 1e9, 30e6
"""Bytes of a device; in the second one there is room to save for two microbatches on their way."""


def in_double(microbatches: int = 8):
    """The step in double precision, where functions of a vector are dear, and its arguments."""
    step = chains(microbatches, rows=4096)
    args = training.sample(step.args, 0, {})
    with jax.enable_x64(True):
        return widened(step.fn, *args), wide(args), step.options


def searched(step, limit: float) -> PipelinePlan:
    with jax.enable_x64(True):
        return search_meshes(
            {8: step},
            load_cluster(FOUR),
            compare=False,
            time_limit=60,
            remat="search",
            modes=("fused",),
            stages=(4,),
            memory_limit=limit,
            gap=0.02,
        )


def recomputing(plan: PipelinePlan) -> list[bool]:
    return [not one.names for one in plan.saves]


def test_ample_memory_saves_in_every_stage():
    plan = searched(in_double(), AMPLE)
    assert recomputing(plan) == [False] * 4
    assert plan.bound <= plan.order_bound <= plan.step_seconds


def test_tight_memory_computes_again_in_early_stages_and_runs_as_planned(tmp_path):
    step = in_double()
    found = searched(step, TIGHT)
    assert recomputing(found) == [True, True, False, False]
    path = tmp_path / "plan.json"
    found.save(path)
    plan = PipelinePlan.load(path)
    assert plan.saves == found.saves
    assert all(peak <= TIGHT for peak in plan.peak_bytes)
    # A microbatch keeps what its stage saves: a stack of each layer's products and its input.
    (saved,) = {one.names for one in plan.saves if one.names}
    assert len(saved) == DEPTH
    kept = plan.instance.memory_forward
    assert kept[2] - kept[1] == pytest.approx(
        sum(value.bytes for value in plan.saves[2].values if value.saved), rel=0.02
    )
    text = format_pipeline(plan)
    assert f"stages 0, 1: {WRITTEN}" in text
    assert "stages 2, 3: " in text
    assert "      saved  f64[4096,16]  layers/dot_general#6  chains.py:" in text
    fn, args, options = step
    with jax.enable_x64(True):
        lowered = lower_plan(plan, fn, *args, **options)
        params, batch = args
        expected = jax.tree.map(lambda leaf: leaf + 0, params)
        differences = []
        for _ in range(2):
            loss, params = lowered.run(params, batch)
            right, expected = jax.jit(fn)(expected, batch)
            differences += compare_outputs(
                (right, expected), lowered.whole((loss, params)), floor=FLOOR
            )
    assert differences == []
    # What the programs hand from F to BW are the stacks that were planned, of the whole mesh.
    cut = lowered.partition.cut
    for stage in range(4):
        assert cut.bytes(cut.kept(stage)) == pytest.approx(kept[stage], rel=0.02)


def test_a_plan_whose_values_the_step_does_not_have_is_refused():
    plan = searched(in_double(), AMPLE)
    other = small_step(LAYERS, scan=True, microbatches=8)
    with pytest.raises(PlanError, match="is not for this step: what stages are to save is not"):
        lower_plan(plan, other.fn, *other.args, **other.options)


def test_the_choice_equals_brute_force_over_choices_and_orders():
    cluster, counts = load_cluster("3 x h100-1"), (3, 3, 2)
    pricer = Pricer(25e6, seconds=10)
    with jax.enable_x64(True):
        request = request_of("step", {4: in_double(4)}, cluster, pricer)
        titles = promising(request, pricer, "fused", 30, lambda news: None)
        assert len(titles) > 1
        request = request.choosing(titles)
        prices = StagePrices(request, pricer)
        (choice,) = Ranking.of(request, pricer, (3,), ("fused",)).choices()
        stop = time.monotonic() + 60

        def cut(titles):
            partition = request.cut(4, counts, titles)
            return partition, stage_programs(partition, "fused")

        found = choose_saved(request, prices, choice, cut, stop, 0)
        assert isinstance(found, Chosen)
        values = {}
        for each in itertools.product(titles, repeat=3):
            partition, programs = cut(each)
            stop = time.monotonic() + 60
            priced = prices.of(
                partition, programs, choice.placement, choice.bricks_of(each), stop, 0
            )
            assert not isinstance(priced, str)
            assert all(isinstance(one, StagePrice) for one in priced)
            try:
                problem = schedule_problem(
                    partition, priced, choice.placement.mesh_of, cluster, request.limits, "fused"
                )
            except MemoryShortageError:
                continue
            after = max(outer_seconds(partition, priced, choice.placement.mesh_of, cluster))
            values[each] = solve(problem, time_limit=20).value * TICK + after
    best = min(values.values())
    assert len(set(values)) > 1
    assert values[found.titles] <= best * (1 + CHOICE_GAP)
    assert found.bound <= best * (1 + 1e-6)
    assert found.bound >= best * (1 - CHOICE_GAP)
    # The limit binds: what is fastest without it does not fit.
    assert len(set(found.titles)) > 1


def test_each_stage_saves_what_it_is_told_and_the_others_as_the_program_says():
    step = chains(2, layers=4)
    traced = trace_step(step.fn, *step.args, **step.options)
    plain = traced.cut((2, 2))
    found = []

    def saved(staged):
        found.append(staged)
        return [StageChoice(), StageChoice(frozenset(["layers/tanh"]))]

    cut = traced.cut((2, 2), saved=saved).cut
    names = [[bare(one.name) for one in r.values] for r in found[0].residuals]
    assert names[0] == names[1]
    assert {"layers/tanh", "layers/dot_general#6"} <= set(names[0])
    (value,) = (one for one in found[0].residuals[1].values if bare(one.name) == "layers/tanh")
    assert cut.bytes(cut.kept(0)) == plain.cut.bytes(plain.cut.kept(0))
    assert cut.bytes(cut.kept(1)) == plain.cut.bytes(plain.cut.kept(1)) + value.bytes
    assert cut.fragments[0, "BW"].flops == plain.cut.fragments[0, "BW"].flops
    assert cut.fragments[1, "BW"].flops < plain.cut.fragments[1, "BW"].flops
    wrong = [StageChoice(), StageChoice(frozenset(["layers/tan"]))]
    with pytest.raises(KeepError) as caught:
        traced.cut((2, 2), saved=lambda staged: wrong)
    assert "stage 1 has no value 'layers/tan' that its backward pass may read" in str(caught.value)
    away = [StageChoice(), StageChoice(None, frozenset(["layers/carri"]))]
    with pytest.raises(KeepError) as caught:
        traced.cut((2, 2), saved=lambda staged: away)
    assert "stage 1 has no stack 'layers/carri' that could lie on the host" in str(caught.value)


@pytest.mark.parametrize(
    ("step", "saved"),
    [(tiny_llama(4), "layers/"), (small_step(4, checkpoint=True, rows=512), "layer_*/")],
    ids=["a loop in bfloat16", "unrolled layers"],
)
def test_a_plan_is_held_to_the_step_in_double_precision(step, saved, tmp_path):
    found = search_meshes(
        {step_microbatches(step): step},
        load_cluster("2 x h100-1"),
        compare=False,
        stages=(2,),
        modes=("fused",),
        remat="search",
        gap=0.9,
        time_limit=60,
    )
    plan = loaded(found, tmp_path)
    assert [bool(one.names) for one in plan.saves] == [True, True]
    assert f" {saved}" in format_pipeline(plan)
    assert differences_of(plan, step) == []


def test_a_step_that_is_cut_into_microbatches_is_held_to_the_whole(tmp_path):
    step = tiny_llama(4, microbatches=None)
    options = {**step.options, "microbatches": 4}
    found = search_meshes(
        {4: (step.fn, step.args, options)},
        load_cluster("2 x h100-1"),
        whole_step=step,
        stages=(2,),
        modes=("fused",),
        gap=0.9,
        time_limit=60,
    )
    assert found.accumulated
    assert found.microbatches == 4
    assert found.one_mesh is not None
    assert found.one_mesh.microbatches is None
    plan = loaded(found, tmp_path)
    assert plan.accumulated
    assert differences_of(plan, step) == []


def loaded(plan: PipelinePlan, folder: Path) -> PipelinePlan:
    """The plan as a file has it."""
    path = folder / "plan.json"
    plan.save(path)
    return PipelinePlan.load(path)


def differences_of(plan: PipelinePlan, step) -> list:
    """What a plan computes otherwise than the whole step, in double precision."""
    args = training.sample(step.args, 0, BOUNDS)
    return numeric_differences(plan, step.fn, args, **step.options)[0]


def step_microbatches(step) -> int:
    return trace_step(step.fn, *step.args, **step.options).step.microbatches


def test_without_loops_over_layers_there_is_nothing_to_choose():
    plan = search_meshes(
        {4: small_step(layers=2)},
        load_cluster("2 x h100-1"),
        compare=False,
        stages=(2,),
        modes=("fused",),
        remat="search",
        gap=0.9,
        time_limit=120,
    )
    assert plan.saves == ()
    assert "there is nothing to choose to save" in plan.notes[0]
    assert "nothing to choose to save" in format_pipeline(plan)


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="remat='offlaod' is not one of"):
        search_meshes({4: small_step()}, load_cluster(FOUR), remat="offlaod")
