"""Random Pallas kernels: where axes of grids may be cut, parts compute what the whole does.

    python benchmarks/kernels.py --count 500 --seed 0 --workers 2

Each kernel has a random grid, random blocks and index maps, masks, scratch and results
(`kernels_child.py`). It is cut over meshes of two to four devices in the ways that its rule allows,
run in interpret mode, and held to the whole kernel, element by element. `--only 17` runs one again.
"""

from __future__ import annotations

import argparse
import collections
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numbered

CHILD = Path(__file__).with_name("kernels_child.py")
RIGHT = "agrees", "whole"
"""What may be said of a kernel: its cuts compute the same, or it has none."""


def run(options: argparse.Namespace) -> int:
    """Judge all kernels, print outcomes and faults; return 5 if there are any faults."""
    from autoshard.units import counted

    options.told = found = numbered.judged(CHILD, options)
    outcomes = collections.Counter(
        one["said"] if one["said"] in RIGHT else "faults" for one in found
    )
    for said, count in outcomes.most_common():
        print(f"{count:>6}  {said}")
    faults = [one for one in found if one["said"] not in RIGHT]
    for one in faults:
        print(f"{one['number']}: {one.get('words', '')}\n    {one['said']}")
    cuts = sum(one.get("cuts", 0) for one in found)
    print(f"{counted(len(found), 'kernel')}, {cuts} cuts, {counted(len(faults), 'fault')}")
    return 5 if faults else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the benchmark."""
    numbered.add_arguments(parser, count=500, of="kernel")


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser)
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
