"""The solver against brute force on thousands of small random programs.

For every program, all plans of its problem are written out (`random_programs.all_plans`). Plans
are priced by the evaluator, which walks the unfolded program and knows nothing of the problem: all
of them in one test; in the others the ones that matter and a random sample, on which the problem's
own numbers must agree with it to rounding. What `search` finds with a gap of 0 must cost what the
cheapest plan costs that keeps the limit, for no limit, a limit that binds, and the smallest that
leaves any plan at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from autoshard.plan.evaluate import evaluate
from autoshard.plan.plan import Plan
from autoshard.search.search import search
from autoshard.solve.pipeline import solve
from autoshard.solve.problem import Status
from autoshard.solve.sensitivity.minimum import minimum_limit
from tests.helpers import Case, sampled
from tests.random_programs import all_plans, prices_of, random_case

BATCHES = 8
PROGRAMS = 200  # of a batch; at least this fraction of them is small enough to be written out:
WRITTEN_OUT = 0.65
MOST_PLANS = 40_000
SAMPLE = 2
EXACT = 1e-9


@dataclass(frozen=True)
class Everything:
    """A case with all its plans, and their prices by the numbers of the problem."""

    case: Case
    plans: np.ndarray
    seconds: np.ndarray
    peaks: np.ndarray

    def cheapest(self, limit: float) -> int:
        """The cheapest plan that keeps a limit, by brute force."""
        return int(np.where(self.peaks <= limit, self.seconds, np.inf).argmin())

    def check_evaluator(self, number: int) -> None:
        """The problem's price and peak of a plan are those of the evaluator."""
        estimate = self.evaluated(number)
        assert estimate[0] == pytest.approx(self.seconds[number], rel=EXACT)
        assert estimate[1] == self.peaks[number] + self.case.program.constant_bytes

    def evaluated(self, number: int) -> tuple[float, int]:
        """Seconds and peak bytes of a plan, by the evaluator."""
        decisions = self.case.built.decode(self.plans[number].tolist())
        estimate = evaluate(self.case.built.prices, decisions, self.case.mesh.names).estimate
        return estimate.step_seconds, estimate.peak_bytes

    def search(self, limit: float | None) -> Plan:
        """What the search finds under a limit on the problem's bytes."""
        constants = self.case.program.constant_bytes
        return search(
            self.case.program,
            self.case.built.prices.machine,
            mesh=dict(zip(self.case.mesh.names, self.case.mesh.sizes, strict=True)),
            memory_limit=None if limit is None else limit + constants,
            gap=0.0,
            baselines=False,
            fold=False,
        )


def everything(seed: int, most: int = MOST_PLANS) -> Everything | None:
    """All plans of a random program, or None where there are too many."""
    case = random_case(seed)
    plans = all_plans(case.built.problem, most)
    return None if plans is None else Everything(case, plans, *prices_of(case.built.problem, plans))


def check_against_brute_force(given: Everything, limit: float | None, seed: int) -> None:
    """`search` is as cheap as the cheapest plan, says that it is optimal, and keeps the limit."""
    best = given.cheapest(np.inf if limit is None else limit)
    given.check_evaluator(best)
    found = given.search(limit)
    where = f"program {seed}, limit {limit}"
    assert found.estimate.step_seconds == pytest.approx(given.seconds[best], rel=EXACT), where
    assert found.proof.status == "optimal", where
    assert found.proof.bound <= given.seconds[best] * (1 + EXACT), where
    if limit is not None:
        assert found.estimate.peak_bytes <= limit + given.case.program.constant_bytes, where


@pytest.mark.parametrize("batch", sampled(range(BATCHES), lambda batch: batch < 1))
def test_search_finds_what_brute_force_finds(batch: int) -> None:
    written_out = compared = bound = 0
    for seed in range(batch * PROGRAMS, (batch + 1) * PROGRAMS):
        given = everything(seed)
        if given is None:
            continue
        written_out += 1
        dice = np.random.default_rng((seed, 2))
        for number in dice.choice(len(given.plans), SAMPLE).tolist():
            given.check_evaluator(number)
        least, easy = given.peaks.min(), given.peaks[given.cheapest(np.inf)]
        limit = float(least if seed % 2 else dice.uniform(least, easy))
        bound += bool(limit < easy)  # the cheapest plan breaks the limit
        check_against_brute_force(given, None, seed)
        check_against_brute_force(given, limit, seed)
        compared += 2
    assert written_out >= WRITTEN_OUT * PROGRAMS
    assert compared >= 2000 / BATCHES
    assert bound >= 0.25 * written_out


def test_every_plan_of_small_programs_costs_what_the_evaluator_says() -> None:
    programs = plans = 0
    for seed in range(50_000, 50_120):
        given = everything(seed, most=100)
        if given is None:
            continue
        programs += 1
        plans += len(given.plans)
        priced = [given.evaluated(number) for number in range(len(given.plans))]
        seconds = np.array([price[0] for price in priced])
        peaks = np.array([price[1] for price in priced])
        np.testing.assert_allclose(seconds, given.seconds, rtol=EXACT)
        np.testing.assert_array_equal(peaks, given.peaks + given.case.program.constant_bytes)
        best = int(seconds.argmin())
        assert given.search(None).estimate.step_seconds == pytest.approx(seconds[best], rel=EXACT)
    assert programs >= 30
    assert plans >= 1000


def test_no_plan_is_cheaper_than_ideal_seconds() -> None:
    reached = []
    for seed in range(60_000, 60_060):
        given = everything(seed)
        if given is None:
            continue
        prices = given.case.built.prices
        ideal = prices.ideal_seconds([(op.index,) for op in given.case.program.ops])
        assert ideal <= given.seconds.min() * (1 + EXACT), f"program {seed}"
        reached.append(ideal / given.seconds.min())
    assert max(reached) > 0.9  # the bound is worth something
    assert len(reached) >= 40


def test_a_limit_below_every_plan_is_proven_infeasible() -> None:
    proven = 0
    for seed in range(70_000, 70_060):
        given = everything(seed)
        if given is None or given.peaks.min() <= 1:
            continue
        below = replace(given.case.built.problem, limit=float(given.peaks.min()) - 1)
        assert solve(below).status is Status.INFEASIBLE, f"program {seed}"
        proven += 1
    assert proven >= 35


def test_the_smallest_limit_is_that_of_the_lightest_plan() -> None:
    """Within the 2 % to which the range is halved, and never below what some plan needs."""
    found = 0
    for seed in range(80_000, 80_040):
        given = everything(seed)
        if given is None:
            continue
        answer = minimum_limit(given.case.built.problem)
        least = given.peaks.min()
        assert least <= answer.achieved <= least * 1.02, f"program {seed}"
        _, peak = prices_of(given.case.built.problem, np.array([answer.choices]))
        assert peak[0] == answer.achieved
        found += 1
    assert found >= 25
