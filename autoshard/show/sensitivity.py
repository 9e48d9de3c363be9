"""What the step would take on a machine that is a little better in one respect, plan unchanged.

The decisions stay, the evaluator prices them anew; so the best plan on such a machine takes at most
that long. What a plan would be if it were searched again is another question.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.machine.improvements import better_machines
from autoshard.plan.evaluate import evaluate
from autoshard.search.assemble import prices_of
from autoshard.show.profile import Profile


@dataclass(frozen=True, slots=True)
class Gain:
    """A change of the machine, what it makes better, and what the step takes then, in seconds."""

    change: str
    part: str
    step_seconds: float


def gains(found: Profile) -> tuple[Gain, ...]:
    """Every change of the machine by itself, the one that helps most first."""
    prices, plan = found.prices, found.plan
    rows = []
    for better in better_machines(found.machine):
        anew = prices_of(plan, found.program, better.machine, analysed=prices.dataflow)
        estimate = evaluate(anew, plan.decisions, plan.mesh.names).estimate
        rows.append(Gain(better.change, better.part, estimate.step_seconds))
    return tuple(sorted(rows, key=lambda row: row.step_seconds))
