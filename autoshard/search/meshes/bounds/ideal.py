"""The ideal lower bound of all plans on some meshes: all work perfectly shared, nothing sent.

An op takes t_d seconds on mesh d if all of its chips share it evenly. A step of T seconds gives
each mesh at most T seconds of work, so for any weights w_d >= 0 that add up to 1

    T >= sum over d of w_d (work of mesh d) >= sum over ops of min over d of w_d t_d

The weights are 1 / (seconds of the whole step on mesh d), scaled. For meshes of the same kind, the
bound is the work on one mesh divided by their number.
"""

from __future__ import annotations

from autoshard.cost.step_prices import step_prices
from autoshard.machine.cluster import Cluster
from autoshard.program.repeats import find_repeats
from autoshard.program.trace import Program
from autoshard.xla import analyse


def ideal_seconds(program: Program, cluster: Cluster) -> float:
    """Return a lower bound in seconds per step for all plans of the program on the cluster."""
    classes = find_repeats(program)
    kinds = sorted(set(cluster.kinds))
    counts = [cluster.kinds.count(kind) for kind in kinds]
    machines = [cluster.meshes[kind] for kind in kinds]
    laws = [
        step_prices(program, analyse(program, machine.chip), machine, (machine.chips,))
        for machine in machines
    ]
    if len(kinds) == 1:
        return laws[0].ideal_seconds(classes.op_members) / counts[0]
    table = [[law.ideal_seconds([members]) for law in laws] for members in classes.op_members]
    whole = [sum(row[k] for row in table) for k in range(len(kinds))]
    scale = sum(n / max(w, 1e-30) for n, w in zip(counts, whole, strict=True))
    return (
        sum(min(t / max(w, 1e-30) for t, w in zip(row, whole, strict=True)) for row in table)
        / scale
    )
