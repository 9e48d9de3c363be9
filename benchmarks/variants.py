"""Different plans for one program on one mesh: the best, the well-known schemes, and odd ones.

A cost model is worth what it says of plans that differ. The odd plans come from the same solver
under distorted prices: every price is multiplied by a factor that is drawn anew, from a log-normal
law, so that a mild distortion gives plans near the best and a strong one gives bad plans. All of
them are valid, and priced by the independent evaluator at the true prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.cost.step_prices import step_prices
from autoshard.machine.machine import Machine
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import evaluate, tidy
from autoshard.plan.plan import MeshShape, Plan, Proof
from autoshard.problem.build import Built, build
from autoshard.problem.schemes import SCHEMES, DoesNotApplyError, Pins
from autoshard.program.repeats import find_repeats
from autoshard.program.trace import Program
from autoshard.search.alternatives import distorted
from autoshard.search.assemble import assemble
from autoshard.solve import Problem
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.pipeline import solve
from autoshard.xla import analyse

DISTORTIONS = (0.5, 1.5, 3.0)
"""Standard deviations of the logarithm of the factors on prices."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A plan and how it came about."""

    name: str
    plan: Plan


def variants(
    program: Program,
    machine: Machine,
    mesh: Mapping[str, int],
    *,
    distortions: Sequence[float] = DISTORTIONS,
    seed: int = 0,
    time_limit: float = 10.0,
) -> Iterator[Variant]:
    """Different plans for `program` on `mesh`, none of them twice.

    The best plan comes first, then the schemes that apply, then one plan per distortion. Only the
    best must fit the machine's memory.

    Args:
      program: from `autoshard.trace`.
      machine: with as many chips as the mesh has devices.
      mesh: names and sizes of the axes.
      distortions: how strongly prices are distorted, see `DISTORTIONS`.
      seed: of the factors.
      time_limit: seconds for each plan.
    """
    shape = MeshShape(tuple(mesh), tuple(mesh.values()))
    prices = step_prices(program, analyse(program, machine.chip), machine, shape.sizes)
    built = build(prices, find_repeats(program), limit=machine.chip.usable_bytes)
    seen: set[Decisions] = set()
    for name, problem, pins in _problems(built, distortions, seed):
        outcome = solve(problem, time_limit=time_limit, gap=0.005, pins=pins)
        if outcome.solution is None:
            continue
        decisions = tidy(prices, built.decode(outcome.solution.choices))
        if decisions not in seen:
            seen.add(decisions)
            yield Variant(name, _plan(built, decisions, shape))


def _problems(
    built: Built, distortions: Sequence[float], seed: int
) -> Iterator[tuple[str, Problem, Pins | None]]:
    yield "best", built.problem, None
    free = replace(built.problem, limit=None)
    for scheme in SCHEMES:
        if len(built.prices.mesh_shape) >= scheme.axes:
            try:
                yield scheme.name, free, scheme.pins(built)
            except DoesNotApplyError:
                continue
    dice = np.random.default_rng(seed)
    for strength in distortions:
        yield f"prices distorted by {strength:g}", distorted(free, strength, dice), None


def _plan(built: Built, decisions: Decisions, shape: MeshShape) -> Plan:
    evaluation = evaluate(built.prices, decisions, shape.names)
    seconds = evaluation.estimate.step_seconds
    return assemble(
        built.prices,
        decisions,
        shape,
        evaluation,
        proof=Proof("feasible", seconds, 0.0, 1.0, 0.0, LimitHit.GAP),
        memory_limit=float("inf"),
    )
