"""Files that are spoilt at random, given to the commands that read them.

    python benchmarks/mutations.py --count 3000 --seed 0

Right files of every kind are made first (`spoilt.seeds`); each input is one of them with some
bytes, words or values changed (`spoilt.mutate`). Right is: the command does what it is for, or
refuses the file with one message and exit code 2 (3, 4 and 5 where a spoilt file asks for what
cannot be).
A fault is a traceback, another exit code, a process that ends, or one that takes too long.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from spoilt.seeds import KINDS, make

CHILD = Path(__file__).parent / "spoilt" / "child.py"
DEAD = 60.0
"""Seconds beyond its limit after which a process is ended that its alarm does not end."""


def run(options: argparse.Namespace) -> int:
    """Run all inputs, print a table and the faults; return 5 where there are any."""
    from autoshard.units import counted

    kinds = options.kinds or [kind.name for kind in KINDS]
    with tempfile.TemporaryDirectory() as own:
        folder = Path(options.files or own)
        if not (folder / "plan.json").exists():
            make(folder, kinds)
        found = answers(folder, Path(own), kinds, options)
    counts = collections.Counter((one["kind"], bool(one["fault"])) for one in found)
    print(f"{'kind':<18}{'inputs':>8}{'refused':>9}{'slowest':>9}{'faults':>8}")
    for kind in kinds:
        rows = [one for one in found if one["kind"] == kind]
        slowest = max((one["seconds"] for one in rows), default=0.0)
        refused = sum(one["code"] == 2 for one in rows)
        print(f"{kind:<18}{len(rows):>8}{refused:>9}{slowest:>8.1f}s{counts[kind, True]:>8}")
    faults = [one for one in found if one["fault"]]
    for one in faults:
        print(f"{one['number']}: autoshard {one['command']}\n    {one['how']}\n    {one['fault']}")
    print(f"{counted(len(found), 'input')}, {counted(len(faults), 'fault')}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    return 5 if faults else 0


def answers(
    folder: Path, places: Path, kinds: list[str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """What became of every input, by number.

    Args:
      folder: of the right files.
      places: where each worker gets a folder.
      kinds: of files.
      options: `count`, `only`, `seed`, `workers` and `limit`, as of the command line.
    """
    numbers = options.only or range(options.count)
    found: dict[int, dict[str, Any]] = {}
    threads = []
    for worker in range(options.workers):
        place = places / f"worker {worker}"
        place.mkdir()
        asked = {"folder": str(folder), "place": str(place), "seed": options.seed}
        asked |= {"kinds": kinds, "limit": options.limit}
        mine = list(numbers)[worker :: options.workers]
        threads.append(threading.Thread(target=_work, args=(asked, mine, found)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return [found[number] for number in sorted(found)]


def _work(asked: dict[str, Any], numbers: list[int], found: dict[int, dict[str, Any]]) -> None:
    """Run these numbers, in a new process where the last one has ended."""
    while numbers:
        words = [sys.executable, str(CHILD), json.dumps({**asked, "numbers": numbers})]
        last: dict[str, Any] = {}
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            assert child.stdout is not None
            timer = threading.Timer(asked["limit"] + DEAD, child.kill)
            timer.start()
            for line in child.stdout:
                last = json.loads(line)
                if "fault" in last:
                    found[last["number"]] = last
                    numbers = [number for number in numbers if number != last["number"]]
                    timer.cancel()
                    timer = threading.Timer(asked["limit"] + DEAD, child.kill)
                    timer.start()
            timer.cancel()
        code = child.returncode
        if not numbers:
            return
        number = last["number"] if last and "fault" not in last else numbers[0]
        ended = {"number": number, "kind": "?", "command": "", "how": "", **last}
        ended |= {"code": code, "seconds": asked["limit"], "fault": f"the process ends: {code}"}
        found[number] = ended
        numbers = [one for one in numbers if one != number]


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for one command")
    parser.add_argument("--kinds", type=lambda text: text.split(","), help="of files, by a comma")
    parser.add_argument("--only", type=int, nargs="*", help="these numbers alone")
    parser.add_argument("--files", metavar="FOLDER", help="of right files, made where it is empty")
    parser.add_argument("--json", metavar="FILE", help="write what became of each input")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
