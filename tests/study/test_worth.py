"""What habits are worth: what predictions of compiled plans lose where one is denied."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoshard import models
from autoshard.compiler.target import GPU_TARGETS, TPU_CHIPS
from autoshard.cost.step_prices import step_prices
from autoshard.machine.load import load
from autoshard.plan.plan import Plan
from autoshard.program.trace import trace
from autoshard.search.assemble import priced_anew
from autoshard.search.search import search
from autoshard.study.habits import named
from autoshard.study.worth import TOGETHER, Effect, Group, Kept, denying, effects, worth
from autoshard.xla import HABITS, analyse


def group_of(name: str, machine: str, **sizes: int) -> Group:
    """A plan of a small program that was compiled nearly as predicted."""
    fn, args, options = models.tiny(name)
    program, where = trace(fn, *args, **options), load(machine)
    plan = search(program, where, mesh=sizes, baselines=False, time_limit=10.0)
    seconds, size = plan.estimate.expected_seconds, plan.estimate.expected_bytes
    return Group(f"{name} on {machine}", program, where, (Kept(plan, seconds, size, 1e6),))


def without(group: Group, *habits: str) -> Plan:
    """The plan of a group, derived and priced anew without habits."""
    machine, plan = denying(group.machine, *habits), group.plans[0].plan
    facts = analyse(group.program, machine.chip)
    return priced_anew(plan, step_prices(group.program, facts, machine, plan.mesh.sizes))


def test_what_is_denied_is_no_habit_any_more_and_nothing_else():
    machine = load("h100-8")
    name = "gpu.sums-combined"
    compiler = denying(machine, name).chip.compiler
    assert machine.chip.compiler.has(name)
    assert not compiler.has(name)
    ours = [one.name for one in HABITS if machine.chip.compiler.has(one.name) and one.name != name]
    assert all(compiler.has(other) for other in ours)


def test_habits_of_some_chips_name_them_as_machines_do():
    """So that they are measured on these, and on no others."""
    named_chips = {chip for habit in HABITS for chip in habit.chips}
    assert named_chips <= {*TPU_CHIPS, *GPU_TARGETS}
    ours, others = "tpu.v5e-hides-gathers", "tpu.v5p-hides-no-gathers"
    (found,) = effects(group_of("mlp", "v5e-8", x=8), named([ours, others]))
    assert (found.habit, found.plans, found.asked) == (ours, 1, True)


def test_what_a_compiler_has_lost_is_denied_all_along():
    """Effects are growths from what the group's own release does; a lost habit has none."""
    group = group_of("gnn", "h100-8", x=8)
    lost, kept = "gpu.loop-edges-as-numbered", "gpu.siblings-run-as-one"
    group = replace(group, machine=denying(group.machine, lost))
    (found,) = effects(group, named([lost, kept]))
    assert found.habit == kept
    step, now, then = (
        group.plans[0].step_seconds,
        *(without(group, *names).estimate.expected_seconds for names in ((), (kept,))),
    )
    expected = abs(math.log(then / step)) - abs(math.log(now / step))
    assert found.step == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "machine", "sizes", "every"),
    [
        ("mlp", "h100-8", {"x": 2, "y": 4}, 3),
        pytest.param("llama3-1b", "h100-8", {"x": 8}, 4, marks=pytest.mark.long),
        pytest.param("llama3-1b", "v5e-8", {"x": 8}, 4, marks=pytest.mark.long),
        pytest.param("gnn", "v5p-8", {"x": 4, "y": 2}, 2, marks=pytest.mark.long),
    ],
)
def test_effects_are_those_of_deriving_and_pricing_anew(name, machine, sizes, every):
    """Few are derived anew, by who asks about what; all are as if each were."""
    group = group_of(name, machine, **sizes)
    (kept,), usual = group.plans, without(group)
    *each, _ = effects(group, HABITS)
    assert len(each) > 60
    for one in each[::every]:
        other = without(group, one.habit)
        ours, theirs = other.estimate, usual.estimate
        assert one.changed == (other.moves != usual.moves or ours != theirs) or not one.changed
        assert one.step == pytest.approx(
            abs(math.log(ours.expected_seconds / kept.step_seconds))
            - abs(math.log(theirs.expected_seconds / kept.step_seconds)),
            abs=1e-12,
        )
        assert one.peak == pytest.approx(
            abs(math.log(ours.expected_bytes / kept.peak_bytes))
            - abs(math.log(theirs.expected_bytes / kept.peak_bytes)),
            abs=1e-12,
        )
        assert (one.moved > 0) >= (other.reshards != usual.reshards)


def test_plans_of_a_group_lose_what_each_loses_by_itself():
    """A plan that no rule asks about a habit keeps its prediction, and its place."""
    best = group_of("mlp", "h100-8", x=8)
    whole = search(
        best.program,
        best.machine,
        mesh={"x": 8},
        requirements=["limit all_reduce count 0", "limit reduce_scatter count 0"],
        baselines=False,
        time_limit=10.0,
    )
    other = replace(best, plans=(replace(best.plans[0], plan=whole),))
    each, both = (best, other), replace(best, plans=best.plans + other.plans)
    habits = [habit for habit in HABITS if "gather" in habit.name or "sums" in habit.name]
    single = [{one.habit: one for one in effects(group, habits)} for group in each]
    for one in effects(both, habits):
        parts = [found[one.habit] for found in single]
        assert one.asked == any(part.asked for part in parts)
        assert (one.changed, one.moved) == tuple(
            sum(getattr(part, name) for part in parts) for name in ("changed", "moved")
        )
        for error in ("step", "peak", "wire", "short"):
            mean = sum(getattr(part, error) for part in parts) / 2
            assert getattr(one, error) == pytest.approx(mean, abs=1e-12)


def test_a_habit_is_worth_what_predictions_lose_without_it():
    """Plans that are compiled just as predicted: every habit that acts is worth something."""
    group = group_of("mlp", "h100-8", x=8)
    names = ["gpu.elementwise-chain", "gpu.products-are-calls", "tpu.late-products"]
    found = list(effects(group, named(names)))
    chain, longest, other = (worth(name, found) for name in names)
    assert chain.changed == longest.changed == 1
    assert chain.step > 0
    assert chain.verdict == longest.verdict == "yes"
    assert chain.group == "mlp on h100-8"
    assert (other.plans, other.changed, other.step, other.peak) == (0, 0, 0, 0)
    assert other.verdict == "no plan asks"


def test_at_last_all_are_denied_at_once():
    group = group_of("mlp", "h100-8", x=8)
    names = ["gpu.elementwise-chain", "gpu.products-are-calls"]
    *_, both = effects(group, named(names))
    kept = group.plans[0]
    seconds = without(group, *names).estimate.expected_seconds
    assert both.habit == TOGETHER
    assert both.step == pytest.approx(abs(math.log(seconds / kept.step_seconds)))
    assert [one.habit for one in effects(group, named(names[:1]))] == names[:1]


def test_a_habit_of_other_chips_is_not_judged():
    group = group_of("mlp", "h100-8", x=8)
    names = ["gpu.gathers-first-on-ampere", "gpu.elementwise-chain"]
    assert [one.habit for one in effects(group, named(names))] == ["gpu.elementwise-chain"]


def effect(group: str, plans: int, step: float, peak: float = 0.0, moved: int = 0) -> Effect:
    return Effect("a", group, plans, True, plans, moved, step, peak)


def test_a_habit_buys_what_it_buys_in_its_best_group():
    """Means are over plans; that one family gains is enough."""
    images, words = effect("images", 1, 0.05, -0.2), effect("words", 4, -0.01)
    found = worth("a", [images, words, Effect("b", "images", 1, True, 1, 0, 9.0)])
    assert (found.plans, found.changed) == (5, 5)
    assert found.step == pytest.approx((0.05 - 0.04) / 5)
    assert found.peak == pytest.approx(-0.04)
    assert (found.buys, found.group, found.verdict) == (0.05, "images", "yes")


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([effect("images", 2, 0.005)], "yes"),
        ([effect("images", 2, 0.0, 0.006)], "yes"),
        ([effect("images", 2, 0.0049, 0.0049)], "no"),
        ([effect("images", 2, -0.3, -0.1)], "no"),
        ([replace(effect("images", 2, -0.3, -0.1), short=0.005)], "memory"),
        ([replace(effect("images", 2, 0.1), short=0.005)], "yes"),
        ([effect("images", 2, 0.0), effect("words", 2, 0.0, moved=1)], "collectives"),
        ([Effect("a", "images", 2)], "no plan asks"),
        ([], "no plan asks"),
    ],
)
def test_verdicts(found, verdict):
    assert worth("a", found).verdict == verdict
