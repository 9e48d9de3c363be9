"""Our own plan of a run: the same program on the same machine, chosen as a user would.

The model, its precision and attention, the batch of a step, and the flags of the compiler are the
run's. What is chosen is what a user may leave to the search: where everything lies, the mesh, what
is kept for the backward pass and what of it waits on the host, and over how many microbatches
gradients are accumulated. A choice a time is freed, each beside the best plan so far:

    written    the run's configuration with its layouts free
    kept       what is kept, on the run's mesh
    mesh       any mesh, and what is kept there
    number     half and twice as many microbatches, and so on while that is better, and what is kept
               then, on the best mesh

The best of them and of the run's own configuration is ours. Of the
time against a pipeline half goes to other ones (`autoshard.study.measured.our_pipeline`). In place
of a pipeline, whose microbatches are many to keep its stages busy, one mesh has the fewest that
fit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.machine.machine import Machine
from autoshard.models.training import Step
from autoshard.plan.plan import Plan
from autoshard.program.subaxes import coarse
from autoshard.program.trace import Program, trace
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.options import Remat as Keep
from autoshard.search.prepare import MeshError
from autoshard.search.search import search
from autoshard.study.measured.completed import free_step, ruled_program, ruled_step
from autoshard.study.measured.question import Question, Remat
from autoshard.units import counted

UNTIL = {"written": 0.1, "kept": 0.45, "mesh": 0.75, "number": 1.0}
"""Until which fraction of the time limit each part of a search lasts."""
LEAST = 0.1
"""Of the seconds of a search, those that a part has at least."""
FACTORS = (0.5, 2.0)
"""Other numbers of microbatches, as multiples of the best so far."""
STRIDE = 4
"""From one number of microbatches to the next that is tried in place of a pipeline's."""


@dataclass(frozen=True, slots=True)
class Ours:
    """Our own plan of a run.

    Attributes:
      plan: the best that was found.
      step: that it is of.
      microbatches: over which the step accumulates gradients.
    """

    plan: Plan
    step: Step
    microbatches: int

    @property
    def seconds(self) -> float:
        """Predicted, of a step."""
        return self.plan.estimate.expected_seconds

    def choices(self, asked: Question) -> str:
        """What it does otherwise than the run beside its mesh; empty where nothing is."""
        hosted = self.plan.options.get("offloaded", ())
        found = [f"{counted(len(hosted), 'stack')} on the host"] if hosted else []
        if self.microbatches != asked.microbatches:
            found = [counted(self.microbatches, "microbatch"), *found]
        return ", ".join(found)


def our_plan(
    asked: Question,
    machine: Machine,
    remat: Remat,
    own: Plan | None,
    *,
    memory_limit: float,
    time_limit: float,
) -> Ours | str:
    """Our own plan, or why there is none.

    Args:
      asked: the run.
      machine: that a plan has: of a pipeline all of its stages'.
      remat: what the run keeps.
      own: the plan of the run's own configuration; None of a pipeline.
      memory_limit: bytes of a device.
      time_limit: seconds of the search.
    """
    search_of = _Search(asked, machine, remat, own, memory_limit, time_limit)
    return search_of.run()


class _Search:
    """The state of one search: the best so far, and what stood against the others."""

    def __init__(
        self,
        asked: Question,
        machine: Machine,
        remat: Remat,
        own: Plan | None,
        memory_limit: float,
        time_limit: float,
    ) -> None:
        self.asked, self.machine, self.remat, self.own = asked, machine, remat, own
        self.memory_limit, self.time_limit = memory_limit, time_limit
        self.started = time.monotonic()
        self.keep: Keep = "offload" if machine.host else "search"
        self.faults: list[str] = []
        self.best: Ours | None = None
        if own is not None:
            self.best = Ours(own, ruled_step(asked, remat), asked.microbatches)

    def run(self) -> Ours | str:
        """See `our_plan`."""
        if self.own is None:
            self._fewest()
        else:
            count, mesh = self.asked.microbatches, dict(self.asked.rules.mesh)
            ruled = ruled_program(self.asked, self.remat)
            self._try("written", ruled, ruled_step(self.asked, self.remat), count, mesh)
            program, free = self._traced(count)
            self._try("kept", program, free, count, mesh)
            self._try("mesh", program, free, count, None)
        self._numbers()
        return self.best or self.faults[0]

    def _fewest(self) -> None:
        """The fewest microbatches that fit on one mesh, where the run has those of a pipeline."""
        counts = [1]
        while counts[-1] * STRIDE <= self.asked.microbatches:
            counts.append(counts[-1] * STRIDE)
        counts = [one for one in counts if self.asked.batch % one == 0]
        for at, count in enumerate(counts):
            self._try("mesh", *self._traced(count), count, None, parts=len(counts) - at)
            if self.best is not None:
                break

    def _numbers(self) -> None:
        """Other numbers of microbatches on the best mesh so far."""
        if self.best is None:
            return
        start = self.best.microbatches
        mesh = coarse(self.best.plan.mesh.names, self.best.plan.mesh.sizes)
        for at, factor in enumerate(FACTORS):
            count, before = round(start * factor), None
            while self.best is not before and count and self.asked.batch % count == 0:
                before = self.best
                parts = len(FACTORS) - at
                self._try("number", *self._traced(count), count, mesh, parts=parts)
                count = round(count * factor)

    def _traced(self, count: int) -> tuple[Program, Step]:
        """The step in so many microbatches, with nothing said of where anything lies."""
        step = free_step(replace(self.asked, microbatches=count, offloaded=()), self.remat)
        return trace(step.fn, *step.args, **step.options), step

    def _try(
        self,
        part: str,
        program: Program,
        step: Step,
        count: int,
        mesh: Mapping[str, int | Sequence[int]] | None,
        *,
        parts: int = 1,
    ) -> None:
        """Search one part, in an equal share of the seconds that it has."""
        left = UNTIL[part] * self.time_limit - (time.monotonic() - self.started)
        try:
            plan = search(
                program,
                self.machine,
                mesh=mesh,
                memory_limit=self.memory_limit,
                time_limit=max(left / parts, LEAST * self.time_limit),
                baselines=False,
                constraints=False,
                start=self.own,
                remat="respect" if part == "written" else self.keep,
            )
        except (InfeasibleError, NoPlanError, MeshError) as error:
            self.faults.append(" ".join(str(error).split())[:300])
            return
        found = Ours(plan, step, count)
        if self.best is None or found.seconds < self.best.seconds:
            self.best = found
