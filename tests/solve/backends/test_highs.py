"""HiGHS as a back end says nothing on standard output, which belongs to whoever asks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
from autoshard.solve.backends.highs import _Silent
solver = _Silent()
solver.run()
print("answered", solver.getModelStatus() is not None)
"""


def test_it_is_silent_from_the_start() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout == "answered True\n"


DEAF = """
import sys, time
from autoshard.cli import entry, main
from autoshard.solve.backends import highs
from tests.solve.backends.models import hard_problem, model_of, task_of

highs._Listener._ask = lambda self, event: None


def run():
    task = task_of(model_of(hard_problem())[0], deadline=time.monotonic() + LIMIT)
    answer = highs.solve(task, lambda *_: None, lambda: False)
    print(answer.verdict.name)
    return 7


main.main = run
if __name__ == "__main__":
    sys.exit(BEGIN())
"""


@pytest.mark.parametrize(("begin", "seconds"), [("entry.main", "60"), ("run", "2")])
def test_a_solver_that_does_not_listen_does_not_hold_up_the_end(begin, seconds) -> None:
    """The command line ends beside it; a program of the user's waits until it comes back."""
    text = DEAF.replace("BEGIN", begin).replace("LIMIT", seconds)
    words = [sys.executable, "-c", text]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == ("STOPPED\n", "", 7)
