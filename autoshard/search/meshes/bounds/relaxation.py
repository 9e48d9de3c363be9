"""Lower bounds of the stages of a choice, as inequalities over the blocks that the stages have.

Stage s has y[s, k] of the blocks of class k. Let t[k, d], f[k, d] and l[k, d] be lower bounds for a
block on mesh d: in a step, in F, and in all tasks of a microbatch
(`autoshard.search.meshes.bounds.block_bound`). For every stage q of every mesh d, let Q be the
stages of d that are not before q. A step takes

    T >= (before q) + sum over s in Q, k of t[k, d] y[s, k] + (after q)

*   Before q: the first task of Q waits for the forwards of one microbatch in all stages before q,
    and for the transfers between them.
*   In between, mesh d runs one task at a time.
*   After q: if the backward pass is one task, the last task of Q is a backward pass, because one
    follows every F. Then the gradient passes through all stages before q. If W is its own task,
    nothing is counted, because no task waits for W.
*   The update, which `t` includes, comes after the loop: a step takes the loop and the longest
    update.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.machine.cluster import Cluster
from autoshard.search.meshes.bounds.bricks import Bricks
from autoshard.search.meshes.choices import Placement
from autoshard.search.meshes.stage_program import Mode

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The inequalities  T >= constants[q] + sum of rows[q, s, k] y[s, k].

    Attributes:
      rows: (stages, stages, classes), seconds per block.
      constants: (stages,), seconds.
      busy: (stages, classes), busy seconds of a mesh per block in a step.
      mesh_of: the mesh of every stage.
      classes: the class of every block.
    """

    rows: Floats
    constants: Floats
    busy: Floats
    mesh_of: tuple[int, ...]
    classes: tuple[int, ...]

    def blocks(self, counts: Sequence[int]) -> Floats:
        """Return y, (stages, classes), for stages with these counts of consecutive blocks."""
        each = np.zeros((len(self.classes) + 1, self.busy.shape[1]))
        each[np.arange(1, len(self.classes) + 1), self.classes] = 1.0
        return np.diff(each.cumsum(axis=0)[[0, *np.cumsum(counts)]], axis=0)

    def seconds(self, counts: Sequence[int], scale: Floats) -> Floats:
        """Return the right-hand sides, by stage, if stage s takes `scale[s]` times its bound."""
        return self.constants + np.einsum("qsk,sk,s->q", self.rows, self.blocks(counts), scale)

    def stage_seconds(self, counts: Sequence[int], scale: Floats) -> Floats:
        """Return the busy seconds of each stage in a step."""
        return (self.busy * self.blocks(counts)).sum(axis=1) * scale


def relaxation(bricks: Bricks, placement: Placement, mode: Mode, cluster: Cluster) -> Relaxation:
    """Return the inequalities of a choice."""
    mesh_of, stages = placement.mesh_of, placement.stages
    on = [[one[cluster.meshes[d].name] for one in bricks.bounds] for d in mesh_of]
    busy = np.array([[one.seconds for one in row] for row in on])
    both = mode == "fused"
    passed = np.array([[b.loop_seconds if both else b.forward_seconds for b in row] for row in on])
    rows = np.zeros((stages, stages, len(bricks.bounds)))
    constants = np.zeros(stages)
    for q in range(stages):
        rows[q, :q] = passed[:q]
        for s in range(q, stages):
            if mesh_of[s] == mesh_of[q]:
                rows[q, s] = busy[s]
        for here, there in itertools.pairwise(mesh_of[: q + 1]):
            constants[q] += cluster.seconds(here, there, bricks.sent_bytes)
            if both:
                constants[q] += cluster.seconds(there, here, bricks.sent_bytes)
    return Relaxation(rows, constants, busy, mesh_of, bricks.classes)
