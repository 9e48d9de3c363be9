"""Random programs: search, lowering, numbers, explicit program and collectives agree in all.

    python benchmarks/programs.py --count 3000 --seed 0 --workers 4

Each program is a few pieces of what people write (`programs_pieces.py`): products, loops of fixed
and unknown length, branches, gathers and scatters, grouped convolutions, transforms, sorts, solves,
complex numbers, own derivatives, calls of Python, state. It is planned for a random machine of
eight chips under random pins, lowered with annotations and written out, and held to Shardy's
collectives and to the unsharded numbers (`programs_child.py`). Right is that all agree, or that a
message says why there is no plan or no lowering. A fault is a judge that disagrees, any other
exception, a process that ends, or one that takes too long. `--only 17` runs one program again.
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

CHILD = Path(__file__).with_name("programs_child.py")
ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}


def is_fault(said: str) -> bool:
    """Whether an outcome is one that may not be."""
    return not said.startswith(("agrees", "refused: "))


def run(options: argparse.Namespace) -> int:
    """Judge all programs, print outcomes and faults; return 5 if there are any faults."""
    found: list[dict[str, Any]] = []
    first = range(options.workers) if options.only is None else [options.only]
    workers = [threading.Thread(target=_work, args=(options, number, found)) for number in first]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found.sort(key=lambda one: one["number"])
    outcomes = collections.Counter(one["said"].partition(":")[0] for one in found)
    for said, count in outcomes.most_common():
        print(f"{count:>6}  {said}")
    faults = [one for one in found if is_fault(one["said"])]
    for one in faults:
        print(
            f"{one['number']}: {one.get('pieces', '')} on {one.get('mesh', '')}\n    {one['said']}"
        )
    print(f"{len(found)} programs, {len(faults)} faults")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    return 5 if faults else 0


def _work(options: argparse.Namespace, first: int, found: list[dict[str, Any]]) -> None:
    """Every so manyth program, in a process that is begun anew where one ends it."""
    step = options.workers if options.only is None else 1
    count = options.count if options.only is None else options.only + 1
    at = first
    while at < count:
        words = [options.seed, at, step, count, options.limit]
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


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=3000, help="of programs (default: 3000)")
    parser.add_argument("--seed", type=int, default=0, help="of the dice (default: 0)")
    parser.add_argument("--only", type=int, help="the number of one program")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--limit", type=int, default=120, help="seconds for each (default: 120)")
    parser.add_argument("--json", help="where to write all outcomes")
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
