"""Random Pallas kernels: where axes of grids may be cut, parts compute what the whole does.

    python benchmarks/kernels.py --count 500 --seed 0 --workers 2

Each kernel has a random grid, random blocks and index maps, masks, scratch and results
(`kernels_child.py`). It is cut over meshes of two to four devices in the ways that its rule allows,
run in interpret mode, and held to the whole kernel, element by element. `--only 17` runs one again.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("kernels_child.py")
ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}
RIGHT = "agrees", "whole"
"""What may be said of a kernel: its cuts compute the same, or it has none."""


def run(options: argparse.Namespace) -> int:
    """Judge all kernels, print outcomes and faults; return 5 if there are any faults."""
    found: list[dict[str, Any]] = []
    first = range(options.workers) if options.only is None else [options.only]
    workers = [threading.Thread(target=_work, args=(options, number, found)) for number in first]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found.sort(key=lambda one: one["number"])
    outcomes = collections.Counter(
        one["said"] if one["said"] in RIGHT else "faults" for one in found
    )
    for said, count in outcomes.most_common():
        print(f"{count:>6}  {said}")
    faults = [one for one in found if one["said"] not in RIGHT]
    for one in faults:
        print(f"{one['number']}: {one.get('words', '')}\n    {one['said']}")
    cuts = sum(one.get("cuts", 0) for one in found)
    print(f"{len(found)} kernels, {cuts} cuts, {len(faults)} faults")
    return 5 if faults else 0


def _work(options: argparse.Namespace, first: int, found: list[dict[str, Any]]) -> None:
    """Every so manyth kernel, in a process that is begun anew where one ends it."""
    step = options.workers if options.only is None else 1
    count = options.count if options.only is None else options.only + 1
    at = first
    while at < count:
        words = [options.seed, at, step, count]
        process = subprocess.Popen(
            [sys.executable, str(CHILD), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            text=True,
        )
        assert process.stdout is not None
        begun = None
        for line in process.stdout:
            answer = json.loads(line)
            begun = answer["number"]
            if "said" in answer:
                found.append(answer)
                begun, at = None, answer["number"] + step
        code = process.wait()
        if begun is not None:
            found.append({"number": begun, "said": f"the process ended with {code}"})
            at = begun + step
        elif code and at == first:
            raise SystemExit(f"the judge does not start: exit code {code}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the benchmark."""
    parser.add_argument("--count", type=int, default=500, help="of kernels (default: 500)")
    parser.add_argument("--seed", type=int, default=0, help="of the dice (default: 0)")
    parser.add_argument("--only", type=int, help="the number of one kernel")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser)
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
