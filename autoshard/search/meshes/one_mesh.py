"""Plans all chips as one mesh, the baseline that pipelining has to beat."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from autoshard.cost.mesh_shapes import candidate_meshes
from autoshard.machine.cluster import Cluster
from autoshard.plan.plan import Plan
from autoshard.program.trace import trace
from autoshard.search.meshes.plan import OneMesh
from autoshard.search.options import Remat
from autoshard.search.search import InfeasibleError, NoPlanError, search
from autoshard.solve.limit_hit import LimitHit


def plan_one_mesh(
    steps: Iterable[tuple[int | None, Any]],
    cluster: Cluster,
    name: str,
    memory_limit: float | None,
    time_limit: float,
    remat: Remat = "respect",
) -> OneMesh:
    """Return the best plan on all chips for the first of `steps` that fits.

    Args:
      steps: pairs (microbatches, step), in the order in which they are tried.
      cluster: a cluster whose meshes are all of the same kind.
      name: the name of the program.
      memory_limit: bytes per device.
      time_limit: seconds.
      remat: what the step saves for its backward pass: as it says, or what is best.

    Raises:
      KeyboardInterrupt: an interrupt came before a plan was found.
    """
    machine = cluster.whole()
    assert machine is not None
    deadline = time.monotonic() + time_limit
    notes = []
    shapes = candidate_meshes(machine, axes=2)[:2]
    for microbatches, (fn, args, options) in steps:
        program = trace(fn, *args, name=name, **options)
        best: Plan | None = None
        for at, shape in enumerate(shapes):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                plan = search(
                    program,
                    machine,
                    mesh=dict(zip(("x", "y"), shape, strict=False)),
                    memory_limit=memory_limit,
                    time_limit=left / (len(shapes) - at),
                    baselines=False,
                    remat=remat,
                )
            except (InfeasibleError, NoPlanError) as error:
                count = "no" if microbatches is None else str(microbatches)
                notes.append(f"with {count} microbatches: {error}")
                continue
            if plan.proof.limit_hit is LimitHit.INTERRUPTED:
                raise KeyboardInterrupt
            if best is None or plan.estimate.step_seconds < best.estimate.step_seconds:
                best = plan
        if best is not None:
            return OneMesh(
                machine.name,
                best.estimate.step_seconds,
                float(best.estimate.peak_bytes),
                str(best.mesh),
                microbatches,
            )
    why = "; ".join(dict.fromkeys(notes))  # of another shape it may be the same
    return OneMesh(machine.name, None, 0.0, "", None, why or "no time was left")
