"""Runs a solver in a process of its own, which can be ended at any moment.

Two reasons. Solvers stop late or not at all: CBC and HiGHS run past their own time limits by
minutes in phases that look at no clock, and a thread that does not return cannot be ended. And the
wheels of highspy and OR-Tools each bring a library called libhighs, of different versions;
whichever is loaded second in a process finds the other's and fails to import.

`ask` starts `python -m autoshard.solve.backends.apart MODULE` in an empty temporary folder that
holds the task. The child writes pickled (bound, values) to its standard output as it learns of them
and an `Answer` at the end. It is ended, with all that it started, when the time is over, when the
caller has enough, and on any exception (Ctrl-C, say); should the caller die without a word, a timer
of the child's own ends it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

import autoshard
from autoshard.solve.backends.task import Answer, Tell, Timed, Verdict

GRACE_SECONDS = 0.5
"""How long after the deadline an answer is waited for."""
ORPHAN_SECONDS = 5.0
"""How long after the deadline a child ends itself."""
POLL_SECONDS = 0.05
TASK, ERRORS = "task.pickle", "errors.txt"


def ask(
    module: str, task: Timed, tell: Tell, keep_going: Callable[[], bool] | None = None
) -> Answer:
    """The answer of the back end `module` (its `solve`), or what it told before its time was over.

    `tell` is called, from this thread, with what the solver tells; `keep_going` again and again,
    and ends the solver by returning False.
    """
    with (
        tempfile.TemporaryDirectory(prefix="autoshard-") as folder,
        contextlib.ExitStack() as stack,
    ):
        with Path(folder, TASK).open("wb") as file:
            pickle.dump(task, file, protocol=pickle.HIGHEST_PROTOCOL)
        errors = stack.enter_context(Path(folder, ERRORS).open("wb"))
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "autoshard.solve.backends.apart", module],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": _python_path()},
            process_group=0,
        )
        stack.callback(_end, child)
        assert child.stdout is not None
        news: queue.SimpleQueue[object] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(child.stdout, news), daemon=True)
        reader.start()
        answer = _wait(news, task.deadline + GRACE_SECONDS, tell, keep_going)
        _end(child)
        reader.join()
        if answer.verdict is Verdict.FAILED and not answer.note:
            answer = Answer(Verdict.FAILED, answer.bound, answer.values, note=_why(child, folder))
        return answer


def _wait(
    news: queue.SimpleQueue[object],
    until: float,
    tell: Tell,
    keep_going: Callable[[], bool] | None,
) -> Answer:
    """The child's answer; or what is known when it ends without one, or has to be ended."""
    bound, values = -np.inf, None
    while True:
        try:
            if keep_going is None:
                said = news.get(timeout=min(POLL_SECONDS, max(until - time.monotonic(), 0.001)))
            else:
                said = news.get_nowait()
        except queue.Empty:
            if time.monotonic() >= until or (keep_going is not None and not keep_going()):
                return Answer(Verdict.STOPPED, bound, values)
            continue
        if isinstance(said, Answer):
            return said
        if said is None:
            return Answer(Verdict.FAILED, bound, values)
        seen, better = said  # pyright: ignore[reportGeneralTypeIssues]
        bound = max(bound, seen)
        values = values if better is None else better
        tell(seen, better)


def _read(stream: IO[bytes], news: queue.SimpleQueue[object]) -> None:
    """Pass on what the child says, and None once it says no more."""
    with stream:
        while True:
            try:
                news.put(pickle.load(stream))
            except Exception:  # the end, or what was left when the child was ended
                news.put(None)
                return


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and what it started, and wait until it is gone."""
    if child.returncode is not None:  # its number may be another's by now
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _why(child: subprocess.Popen[bytes], folder: str) -> str:
    said = Path(folder, ERRORS).read_text(errors="replace").strip().split("\n")[-1]
    return said or f"it ended without an answer, with exit code {child.returncode}"


def _python_path() -> str:
    """What lets the child import this very package."""
    package = str(Path(autoshard.__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))


def main(module: str) -> None:
    """Answer the task in the working directory."""
    # What solvers print goes to the errors; standard output is for the answer alone.
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with Path(TASK).open("rb") as file:
        task: Timed = pickle.load(file)
    left = max(task.deadline - time.monotonic(), 0.0)
    signal.setitimer(signal.ITIMER_REAL, left + ORPHAN_SECONDS)
    lock = threading.Lock()

    def say(said: object) -> None:
        with lock:
            pickle.dump(said, stream, protocol=pickle.HIGHEST_PROTOCOL)
            stream.flush()

    solve = importlib.import_module(f"autoshard.solve.{module}").solve
    try:
        answer = solve(task, lambda bound, values: say((bound, values)))
    except Exception as error:
        said = str(error).strip().split("\n")[0]
        answer = Answer(Verdict.FAILED, note=f"{type(error).__name__}: {said}".rstrip(": "))
    say(answer)
    # Solvers take their time to tidy up.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
