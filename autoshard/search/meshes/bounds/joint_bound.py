"""The lower bound of all plans of a choice, over all ways to share blocks among its stages.

    minimise T  subject to the inequalities of `autoshard.search.meshes.bounds.relaxation`, and

    sum over s of y[s, k] = number of blocks of class k
    sum over k of y[s, k] >= 1            stages have blocks, the first block the first stage, the
                                          last block the last stage
    sum over s on d, k of state[k] y[s, k]  <=  chips of d x usable bytes of a device

This is a linear program: y may be fractional. Every plan satisfies all constraints, so the minimum
T is a lower bound: the work of the busiest mesh, with filling and draining. If the linear program
is infeasible, no plan fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from autoshard.machine.cluster import Cluster
from autoshard.search.meshes.bounds.bricks import Bricks
from autoshard.search.meshes.bounds.relaxation import Floats, Relaxation

SLACK = 1e-7
"""The relative error allowed for a solution of the linear program."""
INFEASIBLE = 2
"""The status of `scipy.optimize.linprog` for an infeasible linear program."""


@dataclass(frozen=True, slots=True)
class JointBound:
    """The bound of a choice, with the solution of the linear program.

    Attributes:
      seconds: a lower bound in seconds for all plans of the choice; infinite if none fits.
      work: the total busy seconds of all meshes in the solution.
      blocks: the number of blocks of every stage in the solution, possibly fractional.
    """

    seconds: float
    work: float = 0.0
    blocks: tuple[float, ...] = ()


def joint_bound(
    relaxed: Relaxation, bricks: Bricks, cluster: Cluster, limits: Sequence[float]
) -> JointBound:
    """Return the bound of all plans of a choice.

    Args:
      relaxed: the inequalities of the choice.
      limits: usable bytes per device, by mesh.
    """
    stages, classes = relaxed.busy.shape
    counts = [bricks.classes.count(k) for k in range(classes)]
    flows = relaxed.rows.reshape(stages, stages * classes)
    state = np.zeros((len(limits), stages, classes))
    for s, mesh in enumerate(relaxed.mesh_of):
        machine = cluster.meshes[mesh]
        each = [one[machine.name].state_bytes for one in bricks.bounds]
        state[mesh, s] = np.array(each) / (machine.chips * limits[mesh])
    some: Floats = -np.repeat(np.eye(stages, dtype=np.float64), classes, axis=1)
    least = np.zeros((stages, classes))
    least[0, bricks.classes[0]] = 1.0
    least[-1, bricks.classes[-1]] = 1.0
    inequalities = _with_time(
        np.vstack([flows, state.reshape(len(limits), -1), some]), timed=stages
    )
    most = np.concatenate([-relaxed.constants, np.ones(len(limits)), -np.ones(stages)])
    found = linprog(
        _with_time(np.zeros((1, stages * classes)), timed=1)[0] * -1,
        A_ub=inequalities,
        b_ub=most,
        A_eq=_with_time(np.tile(np.eye(classes), stages), timed=0),
        b_eq=np.array(counts, float),
        bounds=[(low, None) for low in (*least.ravel(), 0.0)],
        method="highs",
    )
    if found.status == INFEASIBLE:
        return JointBound(math.inf)
    if not found.success:
        return JointBound(0.0)
    blocks = found.x[:-1].reshape(stages, classes)
    return JointBound(
        float(found.fun) * (1 - SLACK),
        float((blocks * relaxed.busy).sum()),
        tuple(blocks.sum(axis=1).tolist()),
    )


def _with_time(rows: Floats, *, timed: int) -> Floats:
    """Return the rows with a column for T, which is the other side of the first `timed` rows."""
    column = np.zeros((len(rows), 1))
    column[:timed] = -1.0
    return np.hstack([rows, column])
