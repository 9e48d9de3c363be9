"""Numbered random inputs, judged in child processes that are begun anew where one ends them.

A child is called with SEED FIRST STEP COUNT and words of its own, and prints a line of JSON for
each input: `{"number": N}` when it begins, and the same with `said` when it has judged it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
}


def add_arguments(parser: argparse.ArgumentParser, *, count: int, of: str) -> None:
    """Add what says which inputs are judged, and by how many processes."""
    parser.add_argument("--first", type=int, default=0, help=f"the first {of} (default: 0)")
    parser.add_argument("--count", type=int, default=count, help=f"of {of}s (default: {count})")
    parser.add_argument("--seed", type=int, default=0, help="of the dice (default: 0)")
    parser.add_argument("--only", type=int, help=f"the number of one {of}")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")


def judged(
    child: Path,
    options: argparse.Namespace,
    words: Sequence[object] = (),
    *,
    limit: float = math.inf,
    tell: Callable[[dict[str, Any]], None] = lambda answer: None,
) -> list[dict[str, Any]]:
    """What `child` says of all inputs, in order; see `add_arguments` for the options.

    Args:
      words: that the child is called with after the numbers.
      limit: seconds without a line from the child after which it is ended.
      tell: is called with each answer when it comes.
    """
    found: list[dict[str, Any]] = []

    def note(answer: dict[str, Any]) -> None:
        found.append(answer)
        tell(answer)

    begin = range(options.first, options.first + options.workers)
    first = begin if options.only is None else [options.only]
    workers = [
        threading.Thread(target=_work, args=(child, options, number, words, limit, note))
        for number in first
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sorted(found, key=lambda one: one["number"])


def _work(
    child: Path,
    options: argparse.Namespace,
    first: int,
    words: Sequence[object],
    limit: float,
    note: Callable[[dict[str, Any]], None],
) -> None:
    """Every so manyth input."""
    step = options.workers if options.only is None else 1
    count = options.first + options.count if options.only is None else options.only + 1
    at = first
    while at < count:
        begun = None
        with subprocess.Popen(
            [sys.executable, str(child), *map(str, [options.seed, at, step, count, *words])],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            text=True,
        ) as process:
            for line in _lines(process, limit):
                answer = json.loads(line)
                begun = answer["number"]
                if "said" in answer:
                    note(answer)
                    begun, at = None, answer["number"] + step
        code = process.returncode
        if begun is not None:
            note({"number": begun, "said": f"the process ended with {code}"})
            at = begun + step
        elif code and at == first:
            raise SystemExit(f"the judge does not start: exit code {code}")


def _lines(process: subprocess.Popen[str], limit: float) -> Iterator[str]:
    """The lines of a process, which is ended where none comes for too long."""
    assert process.stdout is not None
    while True:
        timer = threading.Timer(min(limit, threading.TIMEOUT_MAX), process.kill)
        timer.daemon = True
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if not line:
            return
        yield line
