"""Modules of ours that run as processes of their own and print an answer as JSON, last of all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a process gave none.

    Attributes:
      why: in words.
      aborted: whether a signal ended it.
      late: whether the time limit ended it.
    """

    why: str
    aborted: bool = False
    late: bool = False


def ask(
    module: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    time_limit: float | None = None,
) -> dict[str, Any] | NoAnswer:
    """Run `python -m MODULE WORDS` and return the JSON of its last line.

    Args:
      module, words: what runs.
      environment: of the process.
      time_limit: seconds after which it is ended.
    """
    try:
        child = subprocess.run(
            [sys.executable, "-m", module, *words],
            env=dict(environment),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=time_limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NoAnswer(f"no answer in {time_limit:g} s", late=True)
    if child.returncode < 0:
        return NoAnswer(f"killed by {signal.Signals(-child.returncode).name}", aborted=True)
    if child.returncode:
        return NoAnswer(child.stderr.strip().split("\n")[-1])
    try:
        return json.loads(child.stdout.strip().split("\n")[-1])
    except ValueError:
        return NoAnswer("the program ends Python before there is an answer")
