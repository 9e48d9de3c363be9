"""All choices of microbatches, placement and mode, each with its bound, the most promising first.

What a choice promises is its bound where the cut that leads to it is tried: one stage a mesh, with
shares that fall along the pipeline as its filling wants. With several stages a mesh, which are cut
evenly, it is the work of a mesh and the waiting of its share,

    work of all / meshes x (1 + (meshes - 1) / (microbatches x stages a mesh))

The second mode is bounded by blocks of its own for the most promising number of microbatches alone.
For others it has the bound of the first mode, which does no more than it: what W reads of B, or is
gathered again for W, only adds. That it takes longer in the same proportion is but a promise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from autoshard.placement.bricks import Bricks, bricks
from autoshard.placement.choices import Placement, ranked_choices
from autoshard.placement.joint_bound import JointBound, joint_bound
from autoshard.placement.pricer import Pricer
from autoshard.placement.relaxation import Relaxation, relaxation
from autoshard.placement.request import Request
from autoshard.placement.stage_program import Mode

DEARER = 1.01
"""What a choice with twice the programs has to promise less."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """A choice with its bound.

    Attributes:
      bricks: of the step with its microbatches and mode.
      relaxed, bound: what its stages take at least, and what all its plans do.
      promise: seconds that a plan may come to.
    """

    microbatches: int
    placement: Placement
    mode: Mode
    bricks: Bricks
    relaxed: Relaxation
    bound: JointBound
    promise: float

    @property
    def title(self) -> str:
        """The choice as it is called in reports."""
        return f"{self.placement.name}, backward {self.mode}"


def ranked(
    request: Request,
    pricer: Pricer,
    stages: Sequence[int] | None,
    modes: Sequence[Mode],
    *,
    time_limit: float,
    say: Callable[[str], None],
) -> list[Ranked]:
    """Bound all choices.

    Raises:
      StageError: there are more stages than blocks, or stages that are no multiple of the meshes.
    """
    cluster = request.cluster
    groups = ranked_choices(
        cluster, request.name, request.blocks, tuple(request.steps), stages, modes
    )
    stop = time.monotonic() + time_limit
    machines = {one.name: (one, pricer.candidates(one)) for one in cluster.meshes}
    known: dict[tuple[int, Mode], Bricks] = {}

    def learn(m: int, mode: Mode, share: float) -> None:
        say(f"bounding the blocks of {m} microbatches, backward {mode}")
        left = (stop - time.monotonic()) * share
        known[m, mode] = bricks(
            partial(request.cut, m), request.blocks, machines, mode, time_limit=left
        )

    def of(m: int, placement: Placement, mode: Mode) -> Ranked:
        found = known.get((m, mode)) or known[m, modes[0]]
        relaxed = relaxation(found, placement, mode, cluster)
        bound = joint_bound(relaxed, found, cluster, request.limits)
        promise = _promise(bound, placement, mode, m) * (1.0 if (m, mode) in known else dearer)
        return Ranked(m, placement, mode, found, relaxed, bound, promise)

    dearer = 1.0
    for at, m in enumerate(request.steps):
        learn(m, modes[0], 1 / (len(request.steps) - at + len(modes) - 1))
    if len(modes) > 1:
        best = min((of(*group) for group in groups if group[2] == modes[0]), key=_by_promise)
        learn(best.microbatches, modes[1], 1.0)
        dearer = _work(known[best.microbatches, modes[1]]) / _work(best.bricks)
    return sorted((of(*group) for group in groups), key=_by_promise)


def _by_promise(choice: Ranked) -> float:
    return choice.promise


def _work(found: Bricks) -> float:
    """Seconds of a block of the commonest class."""
    commonest = max(set(found.classes), key=found.classes.count)
    return min(one.seconds for one in found.bounds[commonest].values())


def _promise(bound: JointBound, placement: Placement, mode: Mode, m: int) -> float:
    meshes = len(set(placement.mesh_of))
    turns = placement.stages / meshes
    if turns == 1:
        return bound.seconds * (DEARER if mode == "split" else 1.0)
    even = bound.work / meshes * (1 + (meshes - 1) / (m * turns))
    return max(bound.seconds, even) * DEARER ** (turns / 2 + (mode == "split"))
