"""Prices runs, a line of JSON each, as `benchmarks/measured.py` asks for them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict


def main() -> None:
    """Answer every line of the input by one line."""
    from autoshard.study.measured.answer import answer
    from autoshard.study.measured.table import Run
    from autoshard.study.measured.version import version

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    for line in sys.stdin:
        asked = json.loads(line)
        run = Run(**asked["run"])
        told = answer(
            run,
            ours=asked["ours"],
            compiles=asked["compiles"],
            time_limit=asked["time_limit"] / 10,
        )
        print(json.dumps({**asdict(told), "version": version()}), file=out, flush=True)


if __name__ == "__main__":
    main()
