"""Random programs: search, lowering, numbers, explicit program and collectives agree in all.

    python benchmarks/programs.py --count 3000 --seed 0 --workers 4

Each program is a few pieces of what people write (`drawn.pieces`, `drawn.algorithms`): products,
loops of fixed and unknown length and in each other, branches, gathers and scatters, grouped
convolutions, transforms, sorts, decompositions, complex numbers, own derivatives, calls of Python,
Refs, noise, constraints and `shard_map`s of the step's own. It is planned for a random machine of
eight chips under random pins, lowered with annotations and written out, and held to Shardy's
collectives and to the unsharded numbers (`drawn.child`). Right is that all agree, or that a message
says why there is no plan or no lowering. A fault is a judge that disagrees, any other exception, a
process that ends, or one that takes too long. `--only 17` runs one program again, `--first 200`
goes on behind those that are done.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numbered

DEAD = 600.0
"""Seconds beyond its limit after which a process is ended that its timer does not end."""
CHILD = Path(__file__).parent / "drawn" / "child.py"


def is_fault(said: str) -> bool:
    """Whether an outcome is one that may not be."""
    return not said.startswith(("agrees", "refused: "))


def _teller(kept: str | None) -> Callable[[dict[str, Any]], None]:
    """What tells faults, and keeps every answer when it comes: a run that is ended has those."""

    def tell(one: dict[str, Any]) -> None:
        _tell_faults(one)
        if kept:
            with open(kept, "a") as file:
                file.write(json.dumps(one) + "\n")

    return tell


def _tell_faults(one: dict[str, Any]) -> None:
    if is_fault(one["said"]):
        about = f"{one.get('pieces', '')} on {one.get('mesh', '')}"
        print(f"{one['number']}: {about}\n    {one['said']}", flush=True)


def run(options: argparse.Namespace) -> int:
    """Judge all programs, print outcomes and faults; return 5 if there are any faults."""
    from autoshard.units import counted

    found = numbered.judged(
        CHILD, options, [options.limit], limit=options.limit + DEAD, tell=_teller(options.keep)
    )
    outcomes = collections.Counter(one["said"].partition(":")[0] for one in found)
    for said, count in outcomes.most_common():
        print(f"{count:>6}  {said}")
    faults = [one for one in found if is_fault(one["said"])]
    print(f"{counted(len(found), 'program')}, {counted(len(faults), 'fault')}")
    return 5 if faults else 0


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    numbered.add_arguments(parser, count=3000, of="program")
    parser.add_argument(
        "--limit", type=int, default=120, help="seconds of a processor for each (default: 120)"
    )
    parser.add_argument("--keep", metavar="FILE", help="append outcomes, as lines of JSON")
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
