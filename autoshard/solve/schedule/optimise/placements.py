"""The same work placed in different ways: which placement, with which order, is the best.

Which one wins depends on the costs: a V is best where all stages take the same, and worse than one
stage a mesh where the first and the last are heavy, since it puts both on one mesh.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.optimise.outcome import ScheduleOutcome
from autoshard.solve.schedule.optimise.solve import InfeasibleLimitError, solve
from autoshard.units import format_percent


@dataclass(frozen=True, slots=True, eq=False)
class PlacementChoice:
    """The best of several placements.

    Attributes:
      name: of the best.
      outcomes: of all that have a schedule, by name.
      infeasible: why others have none.
    """

    name: str
    outcomes: dict[str, ScheduleOutcome]
    infeasible: dict[str, str]

    @property
    def best(self) -> ScheduleOutcome:
        """The outcome of the best placement."""
        return self.outcomes[self.name]

    @property
    def reason(self) -> str:
        """What each placement comes to, best first, and where its time goes."""
        lines = [f"{self.name} is the best of {len(self.outcomes) + len(self.infeasible)}"]
        for name, outcome in sorted(self.outcomes.items(), key=lambda kv: _rank(kv[1])):
            assert outcome.timeline is not None
            work = max(outcome.timeline.busy)
            proven = "which no schedule beats" if outcome.gap == 0 else "where the bound is"
            lines.append(
                f"{name}: {outcome.objective} {outcome.value:.12g}, {proven} "
                f"{outcome.bound:.12g}; the busiest mesh works {work:.12g}, all wait "
                f"{format_percent(outcome.timeline.bubble)} of the time"
            )
        lines += [f"{name}: {why}" for name, why in self.infeasible.items()]
        return "\n  ".join(lines)


def best_placement(
    instances: Mapping[str, Instance], *, time_limit: float = 60.0, **options: Any
) -> PlacementChoice:
    """Solve the same problem for several placements and choose.

    Args:
      instances: one for each placement, by name; their times must share one unit.
      time_limit: seconds for all together. Each gets an equal share of what is left.
      options: of `solve`, for all.

    Raises:
      InfeasibleLimitError: there is one placement, and no schedule keeps its memory limit.
      ScheduleError: no placement has a schedule; says why for each.
      TimeoutError: the time was over before any was found.
      KeyboardInterrupt: an interrupt came before any was found.
    """
    deadline = time.monotonic() + time_limit
    outcomes: dict[str, ScheduleOutcome] = {}
    infeasible: dict[str, str] = {}
    late: list[str] = []
    for at, (name, instance) in enumerate(instances.items()):
        share = max(0.0, deadline - time.monotonic()) / (len(instances) - at)
        try:
            outcome = solve(instance, time_limit=share, **options)
        except InfeasibleLimitError as error:
            if len(instances) == 1:
                raise
            infeasible[name] = "; ".join(error.faults)
            continue
        if outcome.order is None:
            late.append(name)
        else:
            outcomes[name] = outcome
        if outcome.limit_hit == "interrupted":
            if not outcomes:
                raise KeyboardInterrupt
            break
    if not outcomes and late:
        raise TimeoutError(f"no schedule was found for {', '.join(late)} in {time_limit:g} s")
    if not outcomes:
        faults = [f"{name}: {why}" for name, why in infeasible.items()]
        raise ScheduleError("none of the placements has a schedule, so they", faults)
    name = min(outcomes, key=lambda name: _rank(outcomes[name]))
    return PlacementChoice(name, outcomes, infeasible)


def _rank(outcome: ScheduleOutcome) -> float:
    return float("inf") if outcome.value is None else float(outcome.value)
