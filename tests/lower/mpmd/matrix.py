"""Built-in models on several meshes under every named schedule; a sample of it is in the suite.

    python -m tests.lower.mpmd.matrix             # every model under every schedule, meshes in turn
    python -m tests.lower.mpmd.matrix --all       # on every set of meshes, too
    python -m tests.lower.mpmd.matrix --from 9    # without the first nine cases

Prints one line a case: three optimizer steps in double precision, beside one device. Besides the
named schedules there is the solved one, with one stage a mesh or two in a V, in turn.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=32"
os.environ["JAX_PLATFORMS"] = "cpu"

from autoshard import compat
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.optimise import solve
from autoshard.solve.schedule.task import Order
from tests.lower.mpmd.cases import tiny_llama, tiny_mixtral, tiny_vit
from tests.lower.mpmd.runs import lowered_and_differences, meshes_of

MODELS = {
    "llama, scan, tied": lambda layers: tiny_llama(layers, scan=True),
    "llama, unrolled, tied": lambda layers: tiny_llama(layers, scan=False),
    "llama, no checkpoint": lambda layers: tiny_llama(layers, checkpoint=False, tied=False),
    "mixtral, scan": lambda layers: tiny_mixtral(layers),
    "mixtral, unrolled": lambda layers: tiny_mixtral(layers, scan=False),
    "vit, scan": lambda layers: tiny_vit(layers),
    "vit, unrolled": lambda layers: tiny_vit(layers, scan=False, checkpoint=False),
}
MESHES = [(2, 4), (1, 2, 4, 2), (1,) * 8, (4, 4), (2, 1, 1, 4), (4,) * 8, (1, 1), (4, 2, 1, 1)]
SCHEDULES = ["gpipe", "1f1b", "zb-h1", "zb-h2", "circular", "interleaved", "zb-v", "dualpipe-v"]
QUICK = compat.known_flags(
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
)


SOLVED = "solved"


def solved(instance: Instance) -> Order:
    """The best order that is found in a few seconds, at twice the memory of 1F1B."""
    order = solve(instance.with_limit(instance.limit_named("2x")), time_limit=5, threads=1).order
    assert order is not None
    return order


def stages_and_placement(schedule: str, meshes: int) -> tuple[int, tuple[int, ...] | None]:
    """One stage a mesh, two round the meshes, or two in a V."""
    if schedule in ("zb-v", "dualpipe-v") or (schedule == SOLVED and meshes < 8):
        return 2 * meshes, (*range(meshes), *reversed(range(meshes)))
    return (2 * meshes if schedule in ("circular", "interleaved") else meshes), None


def cases(every: bool) -> list[tuple[str, str, tuple[int, ...]]]:
    """(model, schedule, sizes of the meshes)."""
    turns = itertools.cycle(MESHES)
    return [
        (model, schedule, sizes)
        for model, schedule in itertools.product(MODELS, [*SCHEDULES, SOLVED])
        for sizes in (MESHES if every else (next(turns),))
    ]


def main() -> int:
    """The number of cases that differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--from", type=int, default=0, dest="first")
    options = parser.parse_args()
    wrong = 0
    for model, schedule, sizes in cases(options.all)[options.first :]:
        stages, placement = stages_and_placement(schedule, len(sizes))
        if stages > 8:
            sizes, stages = sizes[:4], 8
            placement = None if placement is None else (0, 1, 2, 3, 3, 2, 1, 0)
        lowered, differences = lowered_and_differences(
            MODELS[model](max(stages, 2)),
            meshes_of(*sizes),
            stages=stages,
            placement=placement,
            schedule=solved if schedule == SOLVED else schedule,
            compiler_options=QUICK,
        )
        wrong += bool(differences)
        verdict = f"{len(differences)} differ: {differences[0]}" if differences else "equal"
        print(f"{model} | {schedule} | {sizes} | {lowered.script} | {verdict}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
