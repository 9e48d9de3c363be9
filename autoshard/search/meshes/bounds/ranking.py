"""All choices of microbatches, placement and mode, each with its bound, the most promising first.

What a choice promises is its bound where the cut that leads to it is tried: one stage a mesh, with
shares that fall along the pipeline as its filling wants. With several stages a mesh, which are cut
evenly, it is the work of a mesh and the waiting of its share,

    work of all / meshes x (1 + (meshes - 1) / (microbatches x stages a mesh))

At first the blocks' work is known alone, of the fewest microbatches, which bounds all others; so
does that of the first mode, for the second works no less: what W reads of B only adds. The solver
is asked about the blocks of one number of microbatches and one mode at a time (`Ranking.ask`), when
somebody wants to know. What is not yet asked promises to take longer than its work in the same
proportion as what was asked; that is but a promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from autoshard.search.meshes.bounds.bricks import Bricks, Machines, Quarry, bricks
from autoshard.search.meshes.bounds.joint_bound import JointBound, joint_bound
from autoshard.search.meshes.bounds.relaxation import Relaxation, relaxation
from autoshard.search.meshes.choices import Placement, ranked_choices
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.request import Request
from autoshard.search.meshes.stage_program import Mode

DEARER = 1.01
"""What a choice with twice the programs has to promise less."""

Group = tuple[int, Placement, Mode]
"""A choice: microbatches, placement and mode."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """A choice with its bound.

    Attributes:
      bricks: of the step with its microbatches and mode.
      relaxed, bound: what its stages take at least, and what all its plans do.
      promise: seconds that a plan may come to.
      asked: whether the solver said all that it can of the blocks.
    """

    microbatches: int
    placement: Placement
    mode: Mode
    bricks: Bricks
    relaxed: Relaxation
    bound: JointBound
    promise: float
    asked: bool

    @property
    def title(self) -> str:
        """The choice as it is called in reports."""
        return f"{self.placement.name}, backward {self.mode}"

    @property
    def group(self) -> Group:
        """The choice by itself."""
        return self.microbatches, self.placement, self.mode


@dataclass(slots=True)
class Ranking:
    """All choices, with what is known of them.

    Attributes:
      groups: the choices.
      modes: the modes that choices have.
      quarries: of microbatches and mode, the blocks, and what the solver said of them.
      known: of a choice, its bound from these bricks.
    """

    request: Request
    groups: Sequence[Group]
    modes: Sequence[Mode]
    quarries: dict[tuple[int, Mode], Quarry]
    known: dict[Group, Ranked] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        request: Request,
        pricer: Pricer,
        stages: Sequence[int] | None,
        modes: Sequence[Mode],
    ) -> Ranking:
        """All choices, with the work of the blocks alone.

        Raises:
          StageError: there are more stages than blocks, or stages that are no multiple of the
            meshes.
        """
        cluster, counts = request.cluster, tuple(request.steps)
        groups = ranked_choices(cluster, request.name, request.blocks, counts, stages, modes)
        machines: Machines = {one.name: (one, pricer.candidates(one)) for one in cluster.meshes}
        quarries: dict[tuple[int, Mode], Quarry] = {}
        for m in counts:
            divisors = [k for k, _ in quarries if m % k == 0]
            if divisors:
                base = quarries[max(divisors), modes[0]].bricks.finer(m)
            else:
                base = bricks(partial(request.cut, m), request.blocks, machines, modes[0])
            for mode in modes:
                quarries[m, mode] = Quarry.of(partial(request.cut, m), machines, mode, base)
        return cls(request, groups, modes, quarries)

    def choices(self) -> list[Ranked]:
        """All choices, the most promising first."""
        dearer = max(_over_work(quarry.bricks) for quarry in self.quarries.values())
        return sorted((self._choice(*group, dearer) for group in self.groups), key=_by_promise)

    def ask(self, choice: Ranked, seconds: float) -> None:
        """Ask the solver the next question about the blocks of a choice, in about that time."""
        self.quarries[choice.microbatches, choice.mode].ask(seconds)

    def _choice(self, m: int, placement: Placement, mode: Mode, dearer: float) -> Ranked:
        quarry = self.quarries[m, mode]
        found = max(self._known(m, mode), key=_over_work)
        known = self.known.get((m, placement, mode))
        if known is not None and known.bricks is found:
            relaxed, bound = known.relaxed, known.bound
        else:
            relaxed = relaxation(found, placement, mode, self.request.cluster)
            bound = joint_bound(relaxed, found, self.request.cluster, self.request.limits)
        promise = _promise(bound, placement, mode, m)
        if quarry.open:
            promise *= max(dearer / _over_work(found), 1.0)
        choice = Ranked(m, placement, mode, found, relaxed, bound, promise, not quarry.open)
        self.known[m, placement, mode] = choice
        return choice

    def _known(self, m: int, mode: Mode) -> list[Bricks]:
        """What bounds the blocks of a choice: its own, and others where transpositions are free."""
        known = [self.quarries[m, mode].bricks]
        cluster = self.request.cluster
        if not any(mesh.chip.transaction_bytes for mesh in cluster.meshes):
            known += [
                quarry.bricks.finer(m, solved=True)
                for (other, its), quarry in self.quarries.items()
                if m % other == 0 and (other, its) != (m, mode) and its in (mode, self.modes[0])
            ]
        return known


def _by_promise(choice: Ranked) -> float:
    return choice.promise


def _over_work(found: Bricks) -> float:
    """What a block of the commonest class takes, over its work."""
    bounds = found.bounds[found.commonest].values()
    return sum(one.seconds for one in bounds) / sum(one.work_seconds for one in bounds)


def _promise(bound: JointBound, placement: Placement, mode: Mode, m: int) -> float:
    meshes = len(set(placement.mesh_of))
    turns = placement.stages / meshes
    if turns == 1:
        return bound.seconds * (DEARER if mode == "split" else 1.0)
    even = bound.work / meshes * (1 + (meshes - 1) / (m * turns))
    return max(bound.seconds, even) * DEARER ** (turns / 2 + (mode == "split"))
