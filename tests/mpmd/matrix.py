"""Built-in models on several meshes under every named schedule; a sample of it is in the suite.

    python -m tests.mpmd.matrix             # every model under every schedule, meshes in turn
    python -m tests.mpmd.matrix --all       # on every set of meshes, too

Prints one line a case: three optimizer steps in double precision, beside one device.
"""

from __future__ import annotations

import itertools
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=32"
os.environ["JAX_PLATFORMS"] = "cpu"

from tests.mpmd.cases import tiny_llama, tiny_mixtral, tiny_vit
from tests.mpmd.runs import lowered_and_differences, meshes_of

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
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def stages_and_placement(schedule: str, meshes: int) -> tuple[int, tuple[int, ...] | None]:
    """One stage a mesh, two round the meshes, or two in a V."""
    if schedule in ("zb-v", "dualpipe-v"):
        return 2 * meshes, (*range(meshes), *reversed(range(meshes)))
    return (2 * meshes if schedule in ("circular", "interleaved") else meshes), None


def main() -> int:
    """The number of cases that differ."""
    wrong = 0
    turns = itertools.cycle(MESHES)
    for model, schedule in itertools.product(MODELS, SCHEDULES):
        for sizes in MESHES if "--all" in sys.argv else (next(turns),):
            stages, placement = stages_and_placement(schedule, len(sizes))
            if stages > 8:
                sizes, stages = sizes[:4], 8
                placement = None if placement is None else (0, 1, 2, 3, 3, 2, 1, 0)
            step = MODELS[model](max(stages, 2))
            lowered, differences = lowered_and_differences(
                step,
                meshes_of(*sizes),
                stages=stages,
                placement=placement,
                schedule=schedule,
                compiler_options=QUICK,
            )
            wrong += bool(differences)
            verdict = f"{len(differences)} differ: {differences[0]}" if differences else "equal"
            print(f"{model} | {schedule} | {sizes} | {lowered.script} | {verdict}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
