"""The best known lower bound of all plans, and the time budget to raise it.

It is the smallest bound of all choices (`autoshard.search.meshes.bounds.ranking`), and at least the
work of the step on all meshes. Only a solver query about the choice with the smallest bound can
raise it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autoshard.program.trace import trace
from autoshard.search.meshes.bounds.ideal import ideal_seconds
from autoshard.search.meshes.bounds.ranking import Ranked, Ranking
from autoshard.search.meshes.request import Request
from autoshard.units import counted

QUESTION_SHARE = 0.25
"""The maximum fraction of the remaining query time that one solver query gets."""


@dataclass(slots=True)
class Bounding:
    """The bounds of all choices.

    Attributes:
      ranking: the choices.
      work: seconds that the work of the step takes, shared by all meshes.
      seconds: the maximum seconds for solver queries.
      deadline: the time, in `time.monotonic`, after which no query may still run; a query that may
        take longer is not started.
      say: a callback that receives progress messages.
      spent, slowest: seconds of all queries so far, and of the slowest one.
      choices: the choices, the most promising first.
    """

    ranking: Ranking
    work: float
    seconds: float
    deadline: float
    say: Callable[[str], None]
    spent: float = 0.0
    slowest: float = 0.0
    choices: list[Ranked] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        request: Request,
        ranking: Ranking,
        seconds: float,
        deadline: float,
        say: Callable[[str], None],
    ) -> Bounding:
        """Return the bounds before any solver query."""
        work = 0.0
        if not request.titles:  # otherwise the work is that of no program in particular
            fn, args, options = next(iter(request.steps.values()))
            program = trace(fn, *args, name=request.name, **options)
            work = ideal_seconds(program, request.cluster)
        return cls(ranking, work, seconds, deadline, say, choices=ranking.choices())

    @property
    def bound(self) -> float:
        """Return a lower bound in seconds for all plans."""
        return max(self.work, self.lowest.bound.seconds)

    @property
    def lowest(self) -> Ranked:
        """Return the choice with the smallest bound."""
        return min(self.choices, key=lambda choice: choice.bound.seconds)

    @property
    def first(self) -> Ranked:
        """Return the most promising choice with the fewest microbatches and the first mode."""
        m, mode = min(self.ranking.request.steps), self.ranking.modes[0]
        return next(one for one in self.choices if (one.microbatches, one.mode) == (m, mode))

    @property
    def may_ask(self) -> bool:
        """Return whether there is time for another solver query."""
        soon = time.monotonic() + self.slowest < self.deadline
        return self.spent < self.seconds and soon

    def ask(self, choice: Ranked) -> None:
        """Query the solver about the blocks of a choice until none is open or the time is over."""
        while not choice.asked and self.may_ask:
            m, mode = choice.microbatches, choice.mode
            self.say(f"bounding the blocks of {counted(m, 'microbatch')}, backward {mode}")
            begun = time.monotonic()
            self.ranking.ask(choice, QUESTION_SHARE * (self.seconds - self.spent))
            took = time.monotonic() - begun
            self.spent, self.slowest = self.spent + took, max(self.slowest, took)
            self.choices = self.ranking.choices()
            choice = next(one for one in self.choices if one.group == choice.group)
