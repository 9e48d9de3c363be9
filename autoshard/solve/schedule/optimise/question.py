"""What CP-SAT is asked about a schedule: records that travel by pickle."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoshard.solve.schedule.optimise.flat import Arrays


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Is there a schedule of a value between `least` and `most`, and which is the best?

    All numbers in ticks.

    Attributes:
      heads, latest: first and last start of every task, (letters, microbatches).
      offset: what is subtracted from the end of a mesh in the value, by mesh; None where that is
        the start of its first task and not known.
      memory_edges: (forward, letter that gives back, how many of those must come before its k-th).
      deadline: when to stop, in seconds of `time.monotonic`.
      threads: how many CP-SAT may use.
      quick: whether it is given up after a little effort.
    """

    arrays: Arrays
    heads: np.ndarray
    latest: np.ndarray
    offset: np.ndarray | None
    memory_edges: list[tuple[int, int, np.ndarray]]
    least: int
    most: int
    deadline: float
    threads: int
    seed: int
    quick: bool = False

    def up_to(self, target: int) -> Question:
        """The question for a value of at most `target`, which is no more than `most`."""
        latest = self.latest
        if self.offset is not None:
            latest = latest - (self.most - target)
        return replace(self, most=target, latest=latest)
