"""A process of `mutations.py`: it spoils files, and runs the commands that read them.

    python child.py '{"folder": ..., "seed": 0, "numbers": [0, 3, ...], ...}'

For each number it prints one line of JSON before the command, and one after it. A command ends by
an alarm when it takes too long; one that ends this process is told by the line that is missing.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shlex
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autoshard.cli.main import main
from spoilt.mutate import mutated
from spoilt.seeds import KINDS

RIGHT = (0, 2, 3, 4, 5)
MOST_MEMORY = 24 * 2**30


class TooLong(BaseException):
    """The command is at work for longer than it may be."""


def child(asked: dict[str, Any]) -> None:
    """Run what is asked; see the module."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    signal.signal(signal.SIGALRM, _ring)
    folder = Path(asked["folder"])
    os.chdir(asked["place"])
    kinds = [kind for kind in KINDS for _ in range(kind.weight) if kind.name in asked["kinds"]]
    for number in asked["numbers"]:
        draw = random.Random(f"{asked['seed']} {number}")
        kind = draw.choice(kinds)
        data, how = mutated((folder / kind.file).read_bytes(), kind.form, draw)
        spoilt = Path(f"spoilt{Path(kind.file).suffix}")
        spoilt.write_bytes(data)
        command = draw.choice(kind.commands).format(shlex.quote(str(spoilt)), of=folder)
        told = {"number": number, "kind": kind.name, "command": command, "how": how[:300]}
        print(json.dumps(told), flush=True)
        print(json.dumps({**told, **_ran(shlex.split(command), asked["limit"])}), flush=True)


def _ran(words: list[str], limit: float) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    started = time.monotonic()
    fault, code = "", None
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            code = main(words)
    except TooLong:
        fault = "hangs: " + _innermost()
    except BaseException as error:
        fault = f"traceback: {type(error).__name__}: {error} at {_innermost()}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    said = err.getvalue()
    if not fault and code not in RIGHT:
        fault = f"exit code {code}"
    if not fault and "Traceback" in said:
        fault = "traceback: " + said.strip().split("\n")[-1]
    if not fault and code == 2 and "autoshard: error: " not in said:
        fault = "no message"
    seconds = time.monotonic() - started
    message = said.partition("autoshard: error: ")[2].split("\n")[0]
    return {"code": code, "seconds": seconds, "fault": fault[:600], "message": message[:200]}


def _innermost() -> str:
    frames = traceback.extract_tb(sys.exc_info()[2])
    own = [
        one for one in frames if "autoshard" in one.filename and "benchmarks" not in one.filename
    ]
    return " < ".join(
        f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in reversed(own[-3:])
    )


def _ring(*_: object) -> None:
    raise TooLong


if __name__ == "__main__":
    child(json.loads(sys.argv[1]))
