"""What no plan of a choice undercuts, however blocks are shared among its stages: a linear program.

Blocks of class k are shared among stages, y[s, k] of them to stage s (parts of blocks, too), every
stage has at least one, and of each class there are as many as there are:

    sum over s of y[s, k] = count[k],    sum over k of y[s, k] >= 1

Let t[k, d], f[k, d] and l[k, d] be what a block takes at least on mesh d: in a step, in F, and in all
tasks of a microbatch (`autoshard.placement.block_bound`). For every stage q of every mesh d, let Q be
the stages of d that are not before q. Then

    T >= (before q) + sum over s in Q, k of t[k, d] y[s, k] + (after q)

*   Before q: tasks of Q are preceded by the forwards of one microbatch in all stages before q, and
    by what is sent between them; and the first task of Q waits for that.
*   In between mesh d works one task at a time.
*   After q: with backward passes in one task, the last task of Q is one, for behind every F comes
    its own; and the gradient goes on through all stages before q. Nothing is counted where W is a
    task of its own, which nobody waits for.
*   The update, which `t` has, comes after the loop: a step takes the loop and the longest update.

So with the longest mesh's work, filling and draining are in the bound. And state has its place:

    sum over s on d, k of state[k] y[s, k]  <=  chips of d x what may be used of a device

The smallest T of the program is a bound; without a solution nothing fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from autoshard.cluster import Cluster
from autoshard.placement.bricks import Bricks
from autoshard.placement.choices import Placement
from autoshard.placement.stage_program import Mode

SLACK = 1e-7
"""The share by which a solution of the linear program may be off."""


@dataclass(frozen=True, slots=True)
class JointBound:
    """The answer.

    Attributes:
      seconds: that no plan of the choice undercuts; infinite where none fits.
      blocks: how many every stage has in the solution.
    """

    seconds: float
    blocks: tuple[float, ...]


def joint_bound(
    bricks: Bricks,
    placement: Placement,
    mode: Mode,
    cluster: Cluster,
    limits: Sequence[float],
) -> JointBound:
    """Bound all plans of a number of microbatches, a placement and a mode.

    Args:
      limits: bytes that may be used per device, by mesh.
    """
    mesh_of, stages = placement.mesh_of, placement.stages
    classes = len(bricks.bounds)
    counts = [bricks.classes.count(k) for k in range(classes)]
    on = [
        [bricks.bounds[k][cluster.meshes[d].name] for k in range(classes)] for d in mesh_of
    ]  # by stage and class
    size = stages * classes + 1  # the last variable is T
    rows, most = [], []
    for start in range(stages):
        row = np.zeros(size)
        constant = 0.0
        for s in range(start):
            for k in range(classes):
                one = on[s][k]
                row[s * classes + k] = one.loop_seconds if mode == "fused" else one.forward_seconds
            there = cluster.seconds(mesh_of[s], mesh_of[s + 1], bricks.sent_bytes)
            back = cluster.seconds(mesh_of[s + 1], mesh_of[s], bricks.sent_bytes)
            constant += there + (back if mode == "fused" else 0.0)
        for s in range(start, stages):
            if mesh_of[s] == mesh_of[start]:
                for k in range(classes):
                    row[s * classes + k] = on[s][k].seconds
        row[-1] = -1.0
        rows.append(row)
        most.append(-constant)
    for mesh, machine in enumerate(cluster.meshes):
        row = np.zeros(size)
        for s in range(stages):
            if mesh_of[s] == mesh:
                for k in range(classes):
                    row[s * classes + k] = on[s][k].state_bytes / machine.chips / limits[mesh]
        rows.append(row)
        most.append(1.0)
    for s in range(stages):
        row = np.zeros(size)
        row[s * classes : (s + 1) * classes] = -1.0
        rows.append(row)
        most.append(-1.0)
    equal = np.zeros((classes, size))
    for k in range(classes):
        equal[k, k : stages * classes : classes] = 1.0
    least = np.zeros(size)
    least[bricks.classes[0]] = 1.0
    last = (stages - 1) * classes + bricks.classes[-1]
    least[last] = max(least[last], 1.0)
    found = linprog(
        np.eye(size)[-1],
        A_ub=np.array(rows),
        b_ub=np.array(most),
        A_eq=equal,
        b_eq=np.array(counts, float),
        bounds=[(low, None) for low in least],
        method="highs",
    )
    if found.status == 2:
        return JointBound(math.inf, ())
    if found.status != 0:
        return JointBound(0.0, ())
    blocks = found.x[:-1].reshape(stages, classes).sum(axis=1)
    return JointBound(float(found.fun) * (1 - SLACK), tuple(map(float, blocks)))
