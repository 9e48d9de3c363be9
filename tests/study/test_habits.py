"""What habits are worth, and which names are none."""

from __future__ import annotations

import pytest

from autoshard import models
from autoshard.machine.load import load
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.study.habits import Group, HabitError, Kept, denying, named, worth
from autoshard.xla import HABITS


def test_names_that_are_none_are_all_named_with_near_ones():
    with pytest.raises(HabitError) as error:
        named(["gpu.gathers-combind", "gpu.gathers-combined", "nonsense"])
    first, near, strange = str(error.value).split("\n")
    assert first == "no habits:"
    assert near.startswith("  - there is no habit 'gpu.gathers-combind'; did you mean gpu.gathers-")
    assert strange == "  - there is no habit 'nonsense'"
    assert [one.name for one in named(["gpu.gathers-combined"])] == ["gpu.gathers-combined"]


def test_what_is_denied_is_no_habit_any_more_and_nothing_else():
    machine = load("h100-8")
    name = "gpu.sums-combined"
    compiler = denying(machine, name).chip.compiler
    assert machine.chip.compiler.has(name)
    assert not compiler.has(name)
    ours = [habit.name for habit in HABITS if habit.compiler == "xla:gpu" and habit.name != name]
    assert all(compiler.has(other) for other in ours)


def test_a_habit_is_worth_what_predictions_lose_without_it():
    """Plans that are compiled just as predicted: every habit that acts is worth something."""
    fn, args, options = models.tiny("mlp")
    program, machine = trace(fn, *args, **options), load("h100-8")
    plan = search(program, machine, mesh={"x": 8}, baselines=False, time_limit=10.0)
    estimate = plan.estimate
    kept = Kept(plan, estimate.expected_seconds, estimate.expected_bytes)
    group = Group("mlp", program, machine, (kept,))
    names = ["gpu.workspace-of-hopper", "gpu.elementwise-chain", "tpu.late-products"]
    workspace, chain, other = worth([group], names)
    assert workspace.changed == chain.changed == 1
    assert workspace.peak > 0
    assert workspace.is_worth_it
    assert chain.step > 0
    assert (other.plans, other.changed, other.step, other.peak) == (0, 0, 0, 0)
