"""Ranges, regrets and their bounds against all plans of small random programs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from autoshard.cost.step_prices import step_prices
from autoshard.machine.machine import Machine, Range
from autoshard.machine.numbers import numbers, with_numbers
from autoshard.plan.evaluate import evaluate
from autoshard.problem.build import build
from autoshard.program.repeats import find_repeats
from autoshard.study.robust.lines import line, search_together
from autoshard.study.robust.plans import Plans
from autoshard.study.robust.regret import least_regret
from autoshard.study.robust.scenarios import Box, Point, box_of, sag
from autoshard.xla import analyse
from tests.helpers import Case, case
from tests.random_programs import all_plans, prices_of, random_machine, random_program

MOST_PLANS = 3_000
EXACT = 1e-7
TOLERANCE = 0.02


@dataclass(frozen=True)
class Everything:
    """All plans of a small program, and what the best of them takes anywhere in a box."""

    case: Case
    box: Box
    all: np.ndarray

    def best(self, point: Point) -> float:
        """Seconds of the best plan at a point, by brute force on the problem's prices."""
        program, machine = self.case.program, self.box.at(point)
        flow = analyse(program, self.box.machine.chip)
        prices = step_prices(program, flow, machine, self.case.mesh.sizes)
        problem = build(prices, find_repeats(program), limit=None).problem
        return float(prices_of(problem, self.all)[0].min())

    def plans(self) -> Plans:
        """What a search would begin with."""
        program, chip = self.case.program, self.box.machine.chip
        sizes = dict(zip(self.case.mesh.names, self.case.mesh.sizes, strict=True))
        free = 2.0**50
        return Plans(
            program,
            analyse(program, chip),
            self.box,
            self.box.machine,
            sizes,
            free,
            free,
            gap=0.0,
            heard=lambda words: None,
        )

    def somewhere(self, dice: np.random.Generator) -> Point:
        """A machine of the box."""
        return tuple(float(dice.uniform(axis.fast, axis.slow)) for axis in self.box.axes)


def everything(seed: int, count: int, spread: float) -> Everything | None:
    """A random program with ranges for `count` numbers; None where it has too many plans, or the
    best takes no time."""
    fn, args, options = random_program(seed)
    dice = np.random.default_rng((seed, 7))
    mesh = ((2,), (4,), (2, 2))[int(dice.integers(3))]
    machine = random_machine(dice, mesh)
    found = case(fn, *args, mesh=dict(zip("xy", mesh, strict=False)), machine=machine, **options)
    plans = all_plans(found.built.problem, MOST_PLANS)
    if plans is None or len(plans) < 2:
        return None
    given = Everything(found, box_of(machine, random_ranges(machine, dice, count, spread)), plans)
    return given if given.best(given.box.fast) > 0 else None


def random_ranges(
    machine: Machine, dice: np.random.Generator, count: int, spread: float
) -> list[Range]:
    """Ranges around some of the numbers on which seconds depend."""
    known = [one for one in numbers(machine) if not one.of_memory and one.value]
    if count == 1:  # of those that matter most
        known = [one for one in known if one.path.endswith(("bandwidth", "_flops", "overlap"))]
    chosen = dice.choice(len(known), count, replace=False)
    found = []
    for one in (known[number] for number in sorted(chosen.tolist())):
        low, high = one.value / dice.uniform(1.0, spread), one.value * dice.uniform(1.0, spread)
        if one.sense == "share" or "efficiency" in one.path:
            high = min(high, 1.0)
        found.append(Range(one.path, float(low), float(high)))
    return found


def some(first: int, wanted: int, count: int, spread: float = 2.5) -> list[tuple[int, Everything]]:
    found = []
    for seed in range(first, first + 40 * wanted):
        given = everything(seed, count, spread)
        if given is not None:
            found.append((seed, given))
        if len(found) == wanted:
            return found
    raise AssertionError(f"only {len(found)} programs are small enough")


def test_the_best_price_never_falls_and_never_outgrows_a_cost_nor_sags_further_than_said():
    sagging = 0.0
    for seed, given in some(100_000, 60, 1):
        (axis,) = given.box.axes
        dice = np.random.default_rng((seed, 8))
        ends = given.best((axis.fast,)), given.best((axis.slow,))
        for _ in range(4):
            cost = float(dice.uniform(axis.fast, axis.slow))
            price = given.best((cost,))
            assert ends[0] <= price * (1 + EXACT) <= ends[1] * (1 + EXACT) ** 2, seed
            assert price / cost * (1 + EXACT) >= ends[1] / axis.slow, seed
            part = (cost - axis.fast) / (axis.slow - axis.fast)
            chord = (1 - part) * ends[0] + part * ends[1]
            assert chord <= price * (1 + axis.sag(axis.fast, axis.slow)) * (1 + EXACT), seed
            sagging = max(sagging, chord / price - 1)
    assert sagging > 0.005  # there are corners, so that the bound is not for nothing


def test_a_sag_is_reached():
    ratio = 1.7
    middle = math.sqrt(ratio)  # max(1, cost) from 1 / middle to middle has its corner at 1
    chord = 1 + (middle - 1) * (1 - 1 / middle) / (middle - 1 / middle)
    assert sag(ratio) == pytest.approx(chord - 1)


def test_ranges_of_one_number():
    lost = proven = 0
    for seed, given in some(200_000, 40, 1, 50.0):
        (axis,) = given.box.axes
        plans = given.plans()
        plan = plans.solve(given.box.taken)
        assert plan is not None
        found = line(plans, 0, plan, TOLERANCE)
        dice = np.random.default_rng((seed, 9))

        for side in (found.low, found.high):
            saved = 1 - 1 / (1 + behind(given, plans, plan, side.end))
            assert side.saved <= saved + EXACT, seed
            assert saved <= side.most_saved + EXACT, seed
            for _ in range(3):
                value = axis.number.value + dice.random() * (side.proven - axis.number.value)
                assert behind(given, plans, plan, value) <= side.within + EXACT, seed
            proven += side.proven == side.end
            if side.lost is not None:
                lost += 1
                assert behind(given, plans, plan, side.lost) >= TOLERANCE - 1e-4, seed
                assert side.proven != side.end, seed
                # the proof reaches to where the other plan takes over
                assert abs(side.proven / side.lost - 1) < 1e-3, seed
    assert lost >= 4
    assert proven >= 20


def test_numbers_that_matter_little_are_searched_together():
    for seed, given in some(260_000, 8, 5, 1.002):
        plans = given.plans()
        plan = plans.solve(given.box.taken)
        assert plan is not None
        search_together(plans, plan, TOLERANCE)
        searches = plans.searches
        for axis in range(5):
            assert line(plans, axis, plan, TOLERANCE).proven, seed
            for cost in (given.box.axes[axis].fast, given.box.axes[axis].slow):
                point = given.box.along(axis, cost)
                assert plans.least(point) <= given.best(point) * (1 + EXACT), seed
        assert (searches, plans.searches) == (2, 2), seed


def behind(given: Everything, plans: Plans, plan: int, value: float) -> float:
    """By what share a plan is behind the best where the only number has a value."""
    point = (given.box.axes[0].number.cost(value),)
    return plans.seconds(point, plan) / given.best(point) - 1


def test_the_least_regret():
    other = 0
    for seed, given in some(300_000, 25, 3):
        plans = given.plans()
        first = plans.solve(given.box.taken)
        assert first is not None
        choice, regrets = least_regret(plans, first, TOLERANCE)
        ends = [(axis.fast, axis.slow) for axis in given.box.axes]
        corners = np.array(np.meshgrid(*ends)).reshape(len(ends), -1).T
        corners = [tuple(map(float, corner)) for corner in corners]
        best = {corner: given.best(corner) for corner in corners}
        for corner, bound in plans.bounds.items():
            assert bound <= given.best(corner) * (1 + EXACT), seed
        for plan, regret in regrets.items():
            true = max(plans.seconds(corner, plan) / best[corner] for corner in corners) - 1
            assert regret.known - EXACT <= true <= regret.most + EXACT, seed
        assert choice.regret.most <= min(one.most for one in regrets.values()) + EXACT
        # no plan at all has less regret than the bound says
        everyone = np.full(len(given.all), -np.inf)
        for corner in corners:
            everyone = np.maximum(everyone, seconds_of_all(given, corner) / best[corner])
        assert choice.least <= everyone.min() - 1 + EXACT, seed
        assert choice.regret.most >= everyone.min() - 1 - EXACT, seed
        dice = np.random.default_rng((seed, 10))
        for _ in range(5):
            point = given.somewhere(dice)
            ratio = plans.seconds(point, choice.plan) / given.best(point)
            assert ratio - 1 <= choice.regret.anywhere + EXACT, seed
        other += choice.plan != first
    assert other >= 2  # the plan for the machine as it is taken is not always it


def seconds_of_all(given: Everything, point: Point) -> np.ndarray:
    """Seconds of all plans at a point."""
    program = given.case.program
    flow = analyse(program, given.box.machine.chip)
    prices = step_prices(program, flow, given.box.at(point), given.case.mesh.sizes)
    return prices_of(build(prices, find_repeats(program), limit=None).problem, given.all)[0]


def test_a_plan_that_keeps_its_sequences_is_convex_in_every_cost():
    kept = 0
    for seed, given in some(400_000, 30, 1):
        (axis,) = given.box.axes
        plans = given.plans()
        plan = plans.solve(given.box.taken)
        assert plan is not None
        ends = [plans.seconds((cost,), plan, steady=True) for cost in (axis.fast, axis.slow)]
        for part in (0.2, 0.5, 0.8):
            cost = (1 - part) * axis.fast + part * axis.slow
            steady = plans.seconds((cost,), plan, steady=True)
            assert steady <= ((1 - part) * ends[0] + part * ends[1]) * (1 + EXACT), seed
            assert steady >= plans.seconds((cost,), plan) * (1 - EXACT), seed
        kept += any(layout is not None for layout in plans.known[plan].decisions.copy)
    assert kept >= 3  # with reshards


def test_numbers_change_what_they_name():
    machine = random_machine(np.random.default_rng(3), (2, 2))
    for one in numbers(machine):
        other = with_numbers(machine, {one.path: 0.5})
        (changed,) = [now for now in numbers(other) if now not in numbers(machine)]
        assert (changed.path, changed.value) == (one.path, 0.5)


def test_evaluator_and_plans_agree():
    (_, given), *_ = some(500_000, 1, 2)
    plans = given.plans()
    plan = plans.solve(given.box.slow)
    assert plan is not None
    prices = plans.prices(given.box.slow, given.case.mesh.sizes)
    again = evaluate(prices, plans.known[plan].decisions, given.case.mesh.names).estimate
    assert plans.seconds(given.box.slow, plan) == again.step_seconds
    assert again.step_seconds == pytest.approx(given.best(given.box.slow), rel=1e-6)
