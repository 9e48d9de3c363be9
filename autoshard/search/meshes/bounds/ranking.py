"""Ranks all choices of microbatches, placement and mode by promise, each with its lower bound.

The promise of a choice is an estimate of its best plan. With one stage per mesh, it is the bound
itself, because a trial tries the cut that leads to the bound, with shares that decrease along the
pipeline. With several stages per mesh, the cut is even, and the promise is the work of a mesh plus
its idle time,

    total work / meshes x (1 + (meshes - 1) / (microbatches x stages per mesh))

At first only the work of the blocks is known, for the fewest microbatches. It is a bound for all
other numbers. The work of the first mode is a bound for the second, whose work is no less: what W
reads from B only adds to it. The solver is queried on request (`Ranking.ask`), for one number of
microbatches and one mode at a time. For choices without a query, the promise assumes the same ratio
of time to work as for those with one. That is only an estimate, not a bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from autoshard.search.meshes.bounds.bricks import Bricks, Machines, Quarries, Quarry, bricks
from autoshard.search.meshes.bounds.joint_bound import JointBound, joint_bound
from autoshard.search.meshes.bounds.relaxation import Relaxation, relaxation
from autoshard.search.meshes.choices import Placement, ranked_choices
from autoshard.search.meshes.pricer import Pricer
from autoshard.search.meshes.request import Request
from autoshard.search.meshes.stage_program import Mode

DEARER = 1.01
"""The factor by which the promise must improve to justify twice as many programs."""

Group = tuple[int, Placement, Mode]
"""A choice: microbatches, placement and mode."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """A choice with its bound.

    Attributes:
      bricks: the bricks of the step with its microbatches and mode.
      by_title: the bricks for each choice of what stages save, if that is chosen; `bricks` are the
        least of them.
      relaxed, bound: the inequalities of its stages, and the lower bound of all its plans.
      promise: an estimate of the seconds of its best plan.
      asked: whether no solver query about the blocks is open.
    """

    microbatches: int
    placement: Placement
    mode: Mode
    bricks: Bricks
    relaxed: Relaxation
    bound: JointBound
    promise: float
    asked: bool
    by_title: Mapping[str, Bricks] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Return the name of the choice in reports."""
        return f"{self.placement.name}, backward {self.mode}"

    def bricks_of(self, titles: Sequence[str]) -> list[Bricks]:
        """Return the bricks of every stage, if stages save what these titles say."""
        each = [self.by_title[title] for title in titles]
        return each or [self.bricks] * self.placement.stages

    @property
    def group(self) -> Group:
        """Return the choice without its bound."""
        return self.microbatches, self.placement, self.mode


@dataclass(slots=True)
class Ranking:
    """All choices, with their bounds so far.

    Attributes:
      groups: the choices.
      modes: the modes that choices have.
      quarries: the blocks and their bounds, by microbatches and mode.
      known: the ranked choices, kept for reuse while their bricks stay the same.
    """

    request: Request
    groups: Sequence[Group]
    modes: Sequence[Mode]
    quarries: dict[tuple[int, Mode], Quarries]
    known: dict[Group, Ranked] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        request: Request,
        pricer: Pricer,
        stages: Sequence[int] | None,
        modes: Sequence[Mode],
    ) -> Ranking:
        """Return all choices, with bounds only from the work of the blocks.

        Raises:
          StageError: there are more stages than blocks, or the number of stages is not a multiple
            of the number of meshes.
        """
        cluster, counts = request.cluster, tuple(request.steps)
        groups = ranked_choices(cluster, request.name, request.blocks, counts, stages, modes)
        machines: Machines = {one.name: (one, pricer.candidates(one)) for one in cluster.meshes}
        quarries: dict[tuple[int, Mode], Quarries] = {}
        for m in counts:
            divisors = [k for k, _ in quarries if m % k == 0]
            parts: dict[Mode, dict[str, Quarry]] = {mode: {} for mode in modes}
            for title in request.titles or ("",):
                cut = partial(request.cut, m, titles=(title,) if title else ())
                if divisors:
                    known = quarries[max(divisors), modes[0]].parts[title]
                    base = known.bricks.finer(m)
                else:
                    base = bricks(cut, request.blocks, machines, modes[0])
                for mode in modes:
                    parts[mode][title] = Quarry.of(cut, machines, mode, base)
            quarries.update({(m, mode): Quarries(part) for mode, part in parts.items()})
        return cls(request, groups, modes, quarries)

    def choices(self) -> list[Ranked]:
        """Return all choices, the most promising first."""
        dearer = max(_over_work(quarry.bricks) for quarry in self.quarries.values())
        return sorted((self._choice(*group, dearer) for group in self.groups), key=_by_promise)

    def ask(self, choice: Ranked, seconds: float) -> None:
        """Run the next solver query about the blocks of a choice, in about this many seconds."""
        self.quarries[choice.microbatches, choice.mode].ask(seconds)

    def _choice(self, m: int, placement: Placement, mode: Mode, dearer: float) -> Ranked:
        quarry = self.quarries[m, mode]
        found = max(self._known(m, mode), key=_over_work)
        by_title = {title: one.bricks for title, one in quarry.parts.items() if title}
        known = self.known.get((m, placement, mode))
        if known is not None and known.bricks is found:
            relaxed, bound = known.relaxed, known.bound
        else:
            relaxed = relaxation(found, placement, mode, self.request.cluster)
            bound = joint_bound(relaxed, found, self.request.cluster, self.request.limits)
        promise = _promise(bound, placement, mode, m)
        if quarry.open:
            promise *= max(dearer / _over_work(found), 1.0)
        asked = not quarry.open
        choice = Ranked(m, placement, mode, found, relaxed, bound, promise, asked, by_title)
        self.known[m, placement, mode] = choice
        return choice

    def _known(self, m: int, mode: Mode) -> list[Bricks]:
        """Return valid bricks of a choice: its own, and others if transpositions are free."""
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
    """Return the ratio of bound to work of a block of the most common class."""
    bounds = found.bounds[found.commonest].values()
    return sum(one.seconds for one in bounds) / sum(one.work_seconds for one in bounds)


def _promise(bound: JointBound, placement: Placement, mode: Mode, m: int) -> float:
    meshes = len(set(placement.mesh_of))
    turns = placement.stages / meshes
    if turns == 1:
        return bound.seconds * (DEARER if mode == "split" else 1.0)
    even = bound.work / meshes * (1 + (meshes - 1) / (m * turns))
    return max(bound.seconds, even) * DEARER ** (turns / 2 + (mode == "split"))
