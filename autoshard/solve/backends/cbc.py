"""CBC (https://github.com/coin-or/Cbc), the program that PuLP brings or finds, as a back end.

The model goes to it as an MPS file with all digits of every number, its progress is read from what
it prints, and its answer from its solution file. Two habits of CBC 2.10 are allowed for. Past its
own time limit it may call a model infeasible, because the relaxations inside its preprocessing were
cut short ("Cut generators found to be infeasible!"): what it concludes after the limit is not
believed. And it looks at the clock rarely: hence `apart`.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from autoshard.extras import install_line, require
from autoshard.solve.backends.task import Answer, Task, Tell, Verdict

MODEL, SOLUTION, START = Path("model.mps"), Path("solution.txt"), Path("start.txt")
_BOUND = re.compile(r"(?:best possible|Lower bound:|Continuous objective value is)\s+(-?[\d.]+\S*)")


def solve(task: Task, tell: Tell) -> Answer:
    """Solve a task in the working directory, telling bounds as they are printed.

    Runs in the main thread of a process that has no other (`apart`).
    """
    MODEL.write_text(mps_text(task))
    tell(-np.inf, None)
    seconds = max(0.01, task.deadline - time.monotonic())
    words = [program(), str(MODEL), "-sec", f"{seconds:.2f}", "-timeMode", "elapsed"]
    words += ["-ratioGap", "0", "-allowableGap", "0"]
    if task.threads > 1:
        words += ["-threads", str(task.threads)]
    if task.start is not None:
        ones = np.flatnonzero(task.start)
        START.write_text("".join(f"{k} x{k} {task.start[k]!r}\n" for k in ones.tolist()))
        words += ["-mips", str(START)]
    words += ["-solve", "-solution", str(SOLUTION)]
    bound, tail = -np.inf, ""
    # CBC prints line by line to a terminal only.
    terminal, inside = pty.openpty()
    with (
        open(terminal, errors="replace") as lines,
        subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=inside,
            stderr=inside,
            # A timer outlives `exec`: CBC ends even if nobody is left to end it.
            preexec_fn=lambda: signal.setitimer(signal.ITIMER_REAL, seconds + 5.0),
        ) as process,
    ):
        os.close(inside)
        for line in _until_closed(lines):
            tail = line.strip() or tail
            if match := _BOUND.search(line):
                seen = printed_bound(match[1])
                if seen > bound:
                    bound = seen
                    tell(bound, None)
    late = time.monotonic() >= task.deadline
    if process.returncode != 0 or not SOLUTION.exists():
        note = f"CBC ended with exit code {process.returncode}: {tail}"
        return Answer(Verdict.FAILED, bound, note=note)
    return _read(SOLUTION.read_text(), task, bound, late)


def program() -> str:
    """The path of the program. PuLP 3 holds it; PuLP 4 finds it on the path, or in `cbcbox`.

    Raises:
      FileNotFoundError: there is none.
      MissingExtraError: PuLP is not there.
    """
    require("pulp", "cbc", "CBC")
    import pulp

    bundled = getattr(pulp, "PULP_CBC_CMD", None)
    path = bundled.pulp_cbc_path if bundled else pulp.COIN_CMD(msg=False).path
    if path is None or (found := shutil.which(path)) is None:
        raise FileNotFoundError(
            f"PuLP {pulp.__version__} finds no program {path or 'cbc'!r}: put CBC on the path"
            f" (Debian's coinor-cbc), or {install_line('cbc')}"
        )
    return found


def _until_closed(lines: TextIO) -> Iterator[str]:
    # A terminal without a writer reports an error instead of an end.
    with contextlib.suppress(OSError):
        yield from lines


def printed_bound(word: str) -> float:
    """A number as CBC prints it, less one unit of its last digit, since it is rounded."""
    digits, _, exponent = word.lower().rstrip(",)").partition("e")
    places = len(digits.partition(".")[2])
    try:
        unit = 10.0 ** (int(exponent or 0) - places)
        value = float(digits) * 10.0 ** int(exponent or 0)
    except ValueError:
        return -np.inf
    return value - unit if abs(value) < 1e49 else -np.inf


def mps_text(task: Task) -> str:
    """The task in free MPS: variables x0, x1, ..., rows r0, r1, ..., numbers with all digits."""
    lines = ["NAME task FREE", "ROWS", " N cost"]
    sides, ranges = [], []
    for row, (lower, upper) in enumerate(
        zip(task.lower.tolist(), task.upper.tolist(), strict=True)
    ):
        if upper == np.inf:
            kind = "N" if lower == -np.inf else "G"
            side = lower
        else:
            kind, side = ("E" if lower == upper else "L"), upper
            if -np.inf < lower < upper:
                ranges.append(f" range r{row} {upper - lower!r}")
        lines.append(f" {kind} r{row}")
        if side != 0.0 and kind != "N":
            sides.append(f" side r{row} {side!r}")
    lines.append("COLUMNS")
    rows = np.repeat(np.arange(task.lower.size), np.diff(task.row_start))
    order = np.argsort(task.column, kind="stable")
    starts = np.searchsorted(task.column[order], np.arange(task.costs.size + 1)).tolist()
    entries = [
        f" r{row} {number!r}"
        for row, number in zip(rows[order].tolist(), task.coefficient[order].tolist(), strict=True)
    ]
    costs = task.costs.tolist()
    for whole in (False, True):
        if whole:
            lines.append(" mark 'MARKER' 'INTORG'")
        for k in np.flatnonzero(task.integer == whole).tolist():
            lines.append(f" x{k} cost {costs[k]!r}")
            lines += [f" x{k}{entry}" for entry in entries[starts[k] : starts[k + 1]]]
        if whole:
            lines.append(" mark 'MARKER' 'INTEND'")
    lines += ["RHS", *sides]
    if ranges:
        lines += ["RANGES", *ranges]
    lines.append("BOUNDS")
    lines += [f" UP bound x{k} {top!r}" for k, top in enumerate(task.top.tolist())]
    lines += ["ENDATA", ""]
    return "\n".join(lines)


def _read(text: str, task: Task, bound: float, late: bool) -> Answer:
    status, *lines = text.splitlines()
    if "infeasible" in status.lower():
        if late:
            note = "called infeasible after the time limit"
            return Answer(Verdict.STOPPED, bound, note=note)
        return Answer(Verdict.INFEASIBLE, np.inf)
    optimal = status.startswith("Optimal") and not late
    values = None
    if "no integer solution" not in status:
        values = np.zeros(task.costs.size)
        for line in lines:
            # "**" marks a value that CBC itself finds to break a row.
            _, name, value, *_ = line.replace("**", "").split()
            values[int(name[1:])] = float(value)
        if optimal:
            bound = float(values @ task.costs)
    verdict = Verdict.OPTIMAL if optimal else Verdict.STOPPED
    return Answer(verdict, bound, values)
