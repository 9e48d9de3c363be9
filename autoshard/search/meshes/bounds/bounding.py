"""The bound of all plans, as far as it is known, and the time that it may take.

It is the least bound of all choices (`autoshard.search.meshes.bounds.ranking`), and at least the
work of the step on all meshes. It can only be raised by asking about the choice with the least
bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autoshard.program.trace import trace
from autoshard.search.meshes.bounds.ideal import ideal_seconds
from autoshard.search.meshes.bounds.ranking import Ranked, Ranking
from autoshard.search.meshes.request import Request

QUESTION_SHARE = 0.25
"""Of the time that is left for asking, what one question gets at most."""


@dataclass(slots=True)
class Bounding:
    """What is known of all choices.

    Attributes:
      ranking: the choices.
      work: seconds that the work of the step takes, shared by all meshes.
      seconds: for asking, at most.
      deadline: no question is begun that may not be answered by then, of `time.monotonic`.
      say: is told what is done.
      spent, slowest: seconds that asking took, and one question at most.
      choices: the most promising first.
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
        """Nothing has been asked yet."""
        fn, args, options = next(iter(request.steps.values()))
        program = trace(fn, *args, name=request.name, **options)
        work = ideal_seconds(program, request.cluster)
        return cls(ranking, work, seconds, deadline, say, choices=ranking.choices())

    @property
    def bound(self) -> float:
        """Seconds that no plan undercuts."""
        return max(self.work, self.lowest.bound.seconds)

    @property
    def lowest(self) -> Ranked:
        """The choice with the least bound."""
        return min(self.choices, key=lambda choice: choice.bound.seconds)

    @property
    def first(self) -> Ranked:
        """The most promising choice of the fewest microbatches and the first mode."""
        m, mode = min(self.ranking.request.steps), self.ranking.modes[0]
        return next(one for one in self.choices if (one.microbatches, one.mode) == (m, mode))

    @property
    def may_ask(self) -> bool:
        """Whether there is time to ask."""
        soon = time.monotonic() + self.slowest < self.deadline
        return self.spent < self.seconds and soon

    def ask(self, choice: Ranked) -> None:
        """Ask about the blocks of a choice until all is said, as long as there is time."""
        while not choice.asked and self.may_ask:
            m, mode = choice.microbatches, choice.mode
            self.say(f"bounding the blocks of {m} microbatches, backward {mode}")
            begun = time.monotonic()
            self.ranking.ask(choice, QUESTION_SHARE * (self.seconds - self.spent))
            took = time.monotonic() - begun
            self.spent, self.slowest = self.spent + took, max(self.slowest, took)
            self.choices = self.ranking.choices()
            choice = next(one for one in self.choices if one.group == choice.group)
