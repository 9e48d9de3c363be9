"""Random requirement sets on small random programs, and what all plans say of them.

Every plan of the unrestricted problem is written out. Whether a plan keeps a requirement is told by
the definition: layouts are looked up choice by choice, collectives are counted in the moves of the
evaluator, memory is swept. Nothing of patterns' masks, hubs, rows or the solver is used.

    python -m tests.problem.requirements.brute_force 0 1000     # checks the seeds 0 to 999
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import evaluate
from autoshard.plan.plan import MeshShape, Plan
from autoshard.problem.requirements.bind import bind
from autoshard.problem.requirements.records import (
    CollectiveLimit,
    Forbid,
    MemoryLimit,
    Pin,
    Requirement,
    Tie,
)
from autoshard.problem.requirements.text import from_json, to_json
from autoshard.program.layout_pattern import Dimension, LayoutPattern
from autoshard.program.select import RequirementError, shown_path
from autoshard.search.search import InfeasibleError, search
from tests.helpers import Case
from tests.random_programs import all_plans, prices_of, random_case

MOST_PLANS = 1500


def layouts_of(pattern: LayoutPattern, layout: Sequence[int], mesh: MeshShape) -> bool:
    """Whether a layout is one of a pattern, dimension by dimension."""
    live = [n for n, size in zip(mesh.names, mesh.sizes, strict=True) if size > 1]
    where = dict(zip(mesh.names, layout, strict=True))
    if any(where[axis] >= 0 for axis in live if axis in pattern.replicated):
        return False
    for number, dimension in enumerate(pattern.dimensions):
        here = [axis for axis in live if where[axis] == number]
        wanted = [axis for axis in dimension.axes if axis in live]
        if here[: len(wanted)] != wanted or (len(here) > len(wanted) and not dimension.open):
            return False
    return True


class Oracle:
    """All plans of a case, and what each of them keeps."""

    def __init__(self, given: Case) -> None:
        self.given = given
        problem = replace(given.built.problem, limit=None)
        self.plans = all_plans(problem, MOST_PLANS)
        if self.plans is None:
            return
        self.seconds, peaks = prices_of(problem, self.plans)
        self.peaks = peaks + given.program.constant_bytes
        prices = given.built.prices
        self.decisions: list[Decisions] = []
        self.evaluations = []
        for plan in self.plans:
            decisions = given.built.decode(plan.tolist())
            # A copy that nobody reads is counted by the problem, and tidied away in plans.
            self.decisions.append(decisions)
            self.evaluations.append(evaluate(prices, decisions, given.mesh.names))

    def keeps(self, requirement: Requirement) -> np.ndarray:
        """Which plans keep a requirement."""
        assert self.plans is not None
        (bound,) = bind(self.given.program, [requirement], self.given.mesh)
        return np.array([self._kept(k, requirement, bound.values) for k in range(len(self.plans))])

    def _kept(self, plan: int, requirement: Requirement, values: Sequence[int]) -> bool:
        decisions = self.decisions[plan]
        mesh = self.given.mesh
        if isinstance(requirement, MemoryLimit):
            return bool(self.peaks[plan] <= requirement.bytes * (1 + 1e-12))
        if isinstance(requirement, CollectiveLimit):
            return self.amount(plan, requirement) <= requirement.most
        stored = [decisions.stored[value] for value in values]
        if isinstance(requirement, Tie):
            return len(set(stored)) == 1
        assert isinstance(requirement, Pin | Forbid)
        if isinstance(requirement, Pin):
            return all(layouts_of(requirement.layout, one or (), mesh) for one in stored)
        both = [*stored, *(decisions.copy[v] for v in values if decisions.copy[v] is not None)]
        return not any(layouts_of(requirement.layout, one or (), mesh) for one in both)

    def amount(self, plan: int, limit: CollectiveLimit) -> float:
        return sum(
            move.count * (1 if limit.bytes is None else move.bytes)
            for move in self.evaluations[plan].moves
            if (move.kind == limit.kind if limit.kind else move.kind != "all_slice")
            and (not limit.over or set(move.axes) & set(limit.over))
            and limit.inside in move.scope
        )


def random_requirements(
    dice: np.random.Generator, given: Case, oracle: Oracle
) -> list[Requirement]:
    """Two to six requirements of any kind and strength; some of them conflict."""
    program, mesh = given.program, given.mesh
    paths = [shown_path(program, value) for value in (*program.inputs, *program.outputs)]
    shapes = [program.values[value].shape for value in (*program.inputs, *program.outputs)]
    found: list[Requirement] = []
    while len(found) < dice.integers(2, 7):
        strength: dict[str, Any] = {}
        throw = dice.random()
        if throw < 0.15:
            strength = {"priority": int(dice.integers(0, 3))}
        elif throw < 0.3:
            strength = {"price": float(dice.choice([0.0, 0.1, 0.5]) * oracle.seconds.min())}
        kind = dice.choice(["pin", "pin", "pin", "forbid", "tie", "memory", "limit", "limit"])
        pick = int(dice.integers(len(paths)))
        if kind in ("pin", "forbid"):
            layout = _random_pattern(dice, len(shapes[pick]), mesh)
            made = (Pin if kind == "pin" else Forbid)(paths[pick], layout, **strength)
        elif kind == "tie":
            same = [p for p, shape in zip(paths, shapes, strict=True) if shape == shapes[pick]]
            made = Tie(tuple(dict.fromkeys(same))[:3], **strength)
        elif kind == "memory":
            plan = int(dice.integers(len(oracle.evaluations)))
            made = MemoryLimit(float(np.ceil(oracle.peaks[plan])), **strength)
        else:
            over = tuple(a for a in mesh.names if dice.random() < 0.3)
            name = dice.choice(["all_gather", "all_reduce", "reduce_scatter", ""]) or None
            name = None if name is None else str(name)
            key: dict[str, Any] = {"count": int(dice.integers(0, 3))}
            inside = str(dice.choice(["", "", "part_0", "part_1"]))
            if dice.random() < 0.4:
                probe = CollectiveLimit(name, over, bytes=0.0, inside=inside)
                plan = int(dice.integers(len(oracle.evaluations)))
                key = {"bytes": float(int(oracle.amount(plan, probe) * dice.choice([0.5, 1.0])))}
            made = CollectiveLimit(name, over, **key, inside=inside, **strength)
        try:
            bind(program, [made], mesh)
        except RequirementError:
            continue
        found.append(from_json(to_json(made)))
    return found


def _random_pattern(dice: np.random.Generator, rank: int, mesh: MeshShape) -> LayoutPattern:
    axes = [axis for axis in mesh.names if dice.random() < 0.6]
    places: dict[int, list[str]] = {}
    for axis in axes:
        places.setdefault(int(dice.integers(-1, rank)) if rank else -1, []).append(axis)
    replicated = tuple(places.pop(-1, ()))
    dimensions = tuple(
        Dimension(tuple(places.get(k, ())), bool(dice.random() < 0.5)) for k in range(rank)
    )
    return LayoutPattern(dimensions, False, replicated)


def check(seed: int) -> str:
    """Hold one random set to all plans; what the case was ("" where it has too many plans)."""
    given = random_case(seed)
    oracle = Oracle(given)
    if oracle.plans is None:
        return ""
    dice = np.random.default_rng((seed, 2))
    requirements = random_requirements(dice, given, oracle)
    keeps = [oracle.keeps(one) for one in requirements]
    allowed = np.ones(len(oracle.plans), dtype=bool)
    for one, kept in zip(requirements, keeps, strict=True):
        if one.hard:
            allowed &= kept
    plan = _searched(given, requirements)
    if isinstance(plan, InfeasibleError):
        assert not allowed.any(), f"seed {seed}: there is a plan, but {plan}"
        _check_conflict(seed, plan, requirements, keeps, oracle)
        return "infeasible"
    assert allowed.any(), f"seed {seed}: a plan for what no plan keeps"
    best = _lexicographic(requirements, keeps, allowed, oracle.seconds)
    assert np.isclose(plan.proof.objective, best, rtol=1e-7), (seed, plan.proof.objective, best)
    verdicts = [one["kept"] for one in plan.requirements]
    assert all(v for v, one in zip(verdicts, requirements, strict=True) if one.hard)
    _check_levels(seed, requirements, keeps, allowed, verdicts)
    return "feasible"


def _searched(given: Case, requirements: Sequence[Requirement]) -> Plan | InfeasibleError:
    try:
        return search(
            given.program,
            given.built.prices.machine,
            mesh=dict(zip(given.mesh.names, given.mesh.sizes, strict=True)),
            requirements=requirements,
            baselines=False,
            fold=False,
            gap=0.0,
        )
    except InfeasibleError as error:
        return error


def _lexicographic(
    requirements: Sequence[Requirement],
    keeps: Sequence[np.ndarray],
    allowed: np.ndarray,
    seconds: np.ndarray,
) -> float:
    for level in sorted({one.priority for one in requirements if one.priority is not None}):
        lost = _lost(requirements, keeps, level)
        allowed = allowed & (lost == lost[allowed].min())
    total = seconds.copy()
    for one, kept in zip(requirements, keeps, strict=True):
        if one.price:
            total += np.where(kept, 0.0, one.price)
    return float(total[allowed].min())


def _lost(
    requirements: Sequence[Requirement], keeps: Sequence[np.ndarray], level: int
) -> np.ndarray:
    """How many requirements of a priority every plan drops."""
    ours = [~kept for one, kept in zip(requirements, keeps, strict=True) if one.priority == level]
    return np.sum(ours, axis=0)


def _check_levels(
    seed: int,
    requirements: Sequence[Requirement],
    keeps: Sequence[np.ndarray],
    allowed: np.ndarray,
    verdicts: Sequence[bool],
) -> None:
    for level in sorted({one.priority for one in requirements if one.priority is not None}):
        lost = _lost(requirements, keeps, level)
        least = lost[allowed].min()
        ours = [v for v, one in zip(verdicts, requirements, strict=True) if one.priority == level]
        assert ours.count(False) == least, f"seed {seed}: p{level} drops {ours}, could {least}"
        allowed = allowed & (lost == least)


def _check_conflict(
    seed: int,
    error: InfeasibleError,
    requirements: Sequence[Requirement],
    keeps: Sequence[np.ndarray],
    oracle: Oracle,
) -> None:
    conflict = error.conflict
    assert conflict is not None, f"seed {seed}: no conflict named: {error}"
    assert conflict.proven
    assert conflict.members
    by_text: dict[str, np.ndarray] = {}
    for one, kept in zip(requirements, keeps, strict=True):
        by_text[str(one)] = kept
    chip = np.ones_like(keeps[0])
    members = [by_text.get(str(bound.requirement), chip) for bound in conflict.members]
    assert not np.logical_and.reduce(members).any(), f"seed {seed}: these have a plan: {error}"
    for fewer in itertools.combinations(members, len(members) - 1):
        kept = np.logical_and.reduce([*fewer, chip])
        assert kept.any(), f"seed {seed}: not minimal: {error}"
    hard = {str(one): kept for one, kept in zip(requirements, keeps, strict=True) if one.hard}
    assert conflict.repairs, f"seed {seed}: no repair for {error}"
    for repair in conflict.repairs:
        gone = {str(bound.requirement) for bound in repair.dropped}
        rest = np.logical_and.reduce([chip, *(k for text, k in hard.items() if text not in gone)])
        assert rest.any(), f"seed {seed}: {repair} does not repair {error}"
        if repair.least is not None:
            (bound,) = repair.dropped
            limit = bound.requirement
            if isinstance(limit, CollectiveLimit):
                least = min(oracle.amount(int(k), limit) for k in np.flatnonzero(rest))
                assert repair.least == least, (seed, repair, least)
            else:
                least = oracle.peaks[rest].min()
                assert least * (1 - 1e-9) <= repair.least <= least * 1.0011, (seed, repair)
        elif repair.step_seconds is not None:
            best = oracle.seconds[rest].min()
            assert best * (1 - 1e-9) <= repair.step_seconds <= best * 1.011, (seed, repair, best)


def main() -> None:
    """Check the seeds between the two numbers of the command line."""
    first, last = map(int, sys.argv[1:3])
    counts: dict[str, int] = {}
    for seed in range(first, last):
        kind = check(seed)
        counts[kind or "too many plans"] = counts.get(kind or "too many plans", 0) + 1
    print(counts)


if __name__ == "__main__":
    main()
