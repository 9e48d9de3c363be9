"""Every built-in program under random plans: the planned collectives, and the right numbers."""

from __future__ import annotations

import itertools

import pytest

from autoshard import models
from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from autoshard.machine.load import load
from tests.helpers import MESHES, best_plan, case, random_plan, sampled

# One of each architecture and form; the others differ in sizes alone.
PROGRAMS = (
    "mlp",
    "llama3-1b",
    "llama3-8b-unrolled",
    "llama3-405b-decode",
    "mixtral-8x7b",
    "vit-l16",
    "resnet50",
    "unet",
    "gnn",
)


# Every program on one mesh in turn; of the others the compiler takes longer.
WRITTEN = sampled(
    list(itertools.product(PROGRAMS, MESHES)),
    lambda one: (
        one[0] not in ("unet", "resnet50", "llama3-8b-unrolled")
        and one[1] == list(MESHES)[PROGRAMS.index(one[0]) % len(MESHES)]
    ),
)


@pytest.mark.parametrize(("name", "mesh"), WRITTEN)
def test_the_compiler_makes_the_planned_collectives(name, mesh):
    fn, args, options = models.tiny(name)
    given = case(fn, *args, mesh=MESHES[mesh], **options)
    plan = random_plan(given, 0)
    assert any(move.kind == "all_to_all" for move in plan.moves)
    comparison = verify_collectives(lower(plan, fn, *args))
    assert comparison.agrees, str(comparison)


@pytest.mark.parametrize(
    ("name", "mesh"),
    sampled([("mlp", "2x2x2"), ("llama3-1b", "2x4"), ("resnet50", "8")], lambda one: one[1] != "8"),
)
def test_loss_gradients_and_state_are_those_of_the_unsharded_step(name, mesh):
    fn, args, options = models.tiny(name)
    plan = random_plan(case(fn, *args, mesh=MESHES[mesh], **options), 3)
    lowered = lower(plan, fn, *args)
    assert numeric_differences(lowered, fn, models.concrete(name, args)) == []


def test_a_tight_memory_limit_shards_the_state():
    fn, args, options = models.tiny("mlp")
    machine = load("h100-8")
    loose = case(fn, *args, mesh=MESHES["8"], machine=machine, **options)
    whole = loose.plan(loose.built.decode([0] * len(loose.built.problem.nodes)))
    assert not whole.moves
    limit = whole.estimate.peak_bytes * 0.6
    given = case(fn, *args, mesh=MESHES["8"], machine=machine, limit=limit, **options)
    tight = best_plan(given, seconds=20.0)
    assert tight.estimate.peak_bytes <= limit
    assert {move.kind for move in tight.moves} >= {"all_gather"}
    comparison = verify_collectives(lower(tight, fn, *args))
    assert comparison.agrees, str(comparison)
