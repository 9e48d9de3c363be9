"""The best order of a pipeline's tasks, with a proven bound.

outcome = solve(instance, objective="makespan", time_limit=60)
print(outcome, outcome.order)
"""

from autoshard.solve.schedule.optimise.outcome import ScheduleOutcome, ScheduleProgress
from autoshard.solve.schedule.optimise.solve import InfeasibleLimitError, smallest_limit, solve

__all__ = [
    "InfeasibleLimitError",
    "ScheduleOutcome",
    "ScheduleProgress",
    "smallest_limit",
    "solve",
]
