"""One process of `test_distributed`: `python distributed_child.py NUMBER PORT FOLDER`.

Runs the code of `docs/guide/cluster.md`, and writes what differs from a run on one device to
`FOLDER/NUMBER.json`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from jax.experimental import multihost_utils

import autoshard
from autoshard import models
from autoshard.lower.numbers.numeric import TOLERANCES, compare_outputs
from autoshard.lower.verify import numeric_differences

PAGE = Path(__file__).parents[2] / "docs/guide/cluster.md"
PROGRAM = "llama3-1b"


def main(arguments: Sequence[str]) -> None:
    number, port, folder = int(arguments[0]), int(arguments[1]), Path(arguments[2])
    step, abstract, _ = models.tiny(PROGRAM)
    names = {
        "jax": jax,
        "autoshard": autoshard,
        "coordinator": f"127.0.0.1:{port}",
        "hosts": 2,
        "host": number,
        "path": str(folder / "plan.json"),
        "step": step,
    }
    code = re.findall(r"^```python cluster\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    start, run = code[0].split("\n", 1)
    exec(compile(start, "cluster.md", "exec"), names)
    # Arrays can be made only after the processes have met.
    names["arguments"] = jax.device_get(models.concrete(PROGRAM, abstract))
    exec(compile(run, "cluster.md", "exec"), names)
    gathered = multihost_utils.process_allgather(names["results"], tiled=True)
    with jax.default_device(jax.local_devices()[0]):
        expected = jax.jit(step)(*names["arguments"])
    lowered = names["lowered"]
    answer = {
        "devices": jax.device_count(),
        "own_devices": jax.local_device_count(),
        "spread": sum(
            not leaf.is_fully_addressable and not leaf.is_fully_replicated
            for leaf in jax.tree.leaves(names["results"])
        ),
        # Loss and parameters, which are float32 made of bfloat16 products. The optimizer's moments
        # are hardly more than their rounding; like all else they are compared in double precision.
        "differences": [
            str(entry)
            for entry in compare_outputs(
                expected[:2], gathered[:2], tolerances={"float32": TOLERANCES["bfloat16"]}
            )
        ],
        "double": [str(entry) for entry in numeric_differences(lowered, step, names["arguments"])],
    }
    (folder / f"{number}.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
