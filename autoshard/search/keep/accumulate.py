"""A search over the number of microbatches, together with all else.

How many microbatches the step works on one after another is an outer choice, like the mesh: fewer
activations are alive at a time, and weights are gathered more often. Each number is planned by the
search that is asked for, in an equal part of the time that is left. The bound of the plan is the
least bound of all numbers that can be had.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan
from autoshard.plan.records import Proof
from autoshard.program.trace import Program, TraceError, in_microbatches
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.options import SearchOptions
from autoshard.solve.limit_hit import LimitHit
from autoshard.units import format_seconds

PlanOne = Callable[[Program, Machine, SearchOptions], list[Plan]]
"""The search for one number of microbatches."""


def search_accumulated(
    program: Program, machine: Machine, asked: SearchOptions, plan_one: PlanOne
) -> list[Plan]:
    """Return the best plan over the numbers of microbatches too, and others of the same number.

    Args:
      program: the step, as it is written.
      machine: the machine.
      asked: the options; the time limit is that of the whole search.
      plan_one: the search for one number.

    Raises:
      TraceError: the step cannot be cut into any of these numbers; the op is named.
      InfeasibleError, NoPlanError: no number has a plan; of the last number that can be had.
      MeshError, RequirementError: as `autoshard.search.search`.
    """
    started = time.monotonic()
    found: dict[int, list[Plan]] = {}
    failed: dict[int, InfeasibleError | NoPlanError | TraceError] = {}
    counts = sorted(set(asked.accumulate))
    for place, count in enumerate(counts):
        left = asked.time_limit - (time.monotonic() - started)
        share = max(left / (len(counts) - place), 0.5)
        one = replace(asked, accumulate=(1,), time_limit=share)
        try:
            step = program if count == 1 else in_microbatches(program, count)
            found[count] = plan_one(step, machine, one)
        except (InfeasibleError, NoPlanError, TraceError) as error:
            failed[count] = error
            continue
        if found[count][0].proof.limit_hit is LimitHit.INTERRUPTED:
            break
    if not found:
        without = [error for error in failed.values() if not isinstance(error, TraceError)]
        raise (without or list(failed.values()))[-1]
    best = min(found, key=lambda count: found[count][0].proof.objective)
    seconds = time.monotonic() - started
    notes = _notes(best, found, failed)
    bounds = [plans[0].proof.bound for plans in found.values()]
    bounds += [0.0 for error in failed.values() if isinstance(error, NoPlanError)]
    return [
        replace(
            plan,
            proof=_proven(plan.proof, min(bounds), seconds),
            notes=(*plan.notes, *notes),
        )
        for plan in found[best]
    ]


def _proven(proof: Proof, bound: float, seconds: float) -> Proof:
    """A proof with the least bound of all numbers."""
    bound = min(proof.bound, bound)
    gap = max(proof.objective - bound, 0.0) / proof.objective if proof.objective > 0 else 0.0
    status = proof.status if gap <= 1e-8 else "feasible"
    hit = proof.limit_hit or (LimitHit.GAP if status == "feasible" else None)
    return replace(proof, bound=bound, gap=gap, status=status, seconds=seconds, limit_hit=hit)


def _notes(
    best: int,
    found: dict[int, list[Plan]],
    failed: dict[int, InfeasibleError | NoPlanError | TraceError],
) -> list[str]:
    """What was chosen, and what became of the other numbers."""
    steps = {k: format_seconds(plans[0].proof.objective) for k, plans in found.items()}
    listed = ", ".join(f"{k} ({step})" for k, step in steps.items())
    what = "the step works on its whole batch at once"
    if best > 1:
        what = (
            f"the step works on {best} microbatches one after another, as "
            f"autoshard.accumulate_grads(..., microbatches={best}) does"
        )
    notes = [f"{what}; microbatches that were planned: {listed}"]
    for count, error in failed.items():
        why = "there was no time for it" if isinstance(error, NoPlanError) else str(error)
        notes.append(f"{count} microbatches have no plan: {' '.join(why.split())}")
    return notes
