"""Solvers in processes of their own: how they end, what they tell, and when they misbehave."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from autoshard.solve.backends import apart, exact, highs
from autoshard.solve.backends.exact import Solver, Verdict, solve_linear
from autoshard.solve.backends.linear import LinearModel
from autoshard.solve.backends.task import Answer, Task, scaled
from tests.solve.backends.models import SOLVERS, hard_problem, model_of, task_of
from tests.solve.helpers import random_problem


@pytest.fixture(scope="module")
def hard() -> LinearModel:
    return model_of(hard_problem())[0]


def children() -> set[int]:
    """The processes that this one has started and that are still there, dead ones included."""
    words = ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lines = [line.split(None, 1) for line in found.splitlines()]
    return {int(pid) for pid, command in lines if command != "ps"}


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_ends_when_the_caller_has_enough(solver, hard):
    before = children()
    calls = 0

    def meanwhile() -> bool:
        nonlocal calls
        calls += 1
        time.sleep(0.05)
        return calls < 5

    result = solve_linear(hard, solver=solver, time_limit=60.0, meanwhile=meanwhile)
    assert (result.verdict, calls) == (Verdict.STOPPED, 5)
    assert children() == before


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_interrupt_leaves_no_process(solver, hard):
    before = children()
    working: set[int] = set()

    def meanwhile() -> bool:
        time.sleep(0.05)
        working.update(children() - before)
        if not working:
            return True
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve_linear(hard, solver=solver, time_limit=60.0, meanwhile=meanwhile)
    assert working
    assert children() == before


@pytest.mark.parametrize("solver", [Solver.HIGHS, Solver.CP_SAT, Solver.CBC])
def test_news_come_while_a_solver_runs(solver, monkeypatch):
    monkeypatch.setattr(exact, "APART_COEFFICIENTS", 0)
    model, _ = model_of(hard_problem(40, 6))
    told = []

    def until_told() -> bool:
        time.sleep(0.02)
        return not told or not np.isfinite(told[-1].bound)

    result = solve_linear(
        model, solver=solver, time_limit=60.0, news=told.append, meanwhile=until_told
    )
    assert result.verdict is Verdict.STOPPED, result.note
    assert all(news.verdict is Verdict.STOPPED for news in told)
    assert told[-1].bound <= result.bound <= result.objective
    assert result.handover_seconds > 0.0


def task_for(body: str, tmp_path, monkeypatch) -> Task:
    """A task, and a back end `misbehaving` with the given body of `solve`."""
    lines = "\n    ".join(body.split("\n"))
    imported = "from autoshard.solve.backends.task import Answer, Verdict"
    code = f"{imported}\n\ndef solve(task, tell):\n    {lines}\n"
    (tmp_path / "misbehaving.py").write_text(code)
    start = "import autoshard.solve.backends as own, sys; own.__path__.append(sys.argv[1]); "
    start += "from autoshard.solve.backends.apart import main; main('backends.misbehaving')"

    def popen(words, **options):
        return subprocess.Popen([sys.executable, "-P", "-c", start, str(tmp_path)], **options)

    shim = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(apart, "subprocess", shim)
    return task_of(model_of(random_problem(3))[0])


def nothing_to_say(bound, values) -> None:
    pass


def ask_until_told(task: Task) -> Answer:
    """Ask the misbehaving solver, and end it once it has told two bounds."""
    told = []

    def keep_going() -> bool:
        time.sleep(0.02)
        return len(told) < 2

    return apart.ask(
        "misbehaving", task, lambda bound, values: told.append((bound, values)), keep_going
    )


def test_a_solver_that_hangs_is_ended_at_its_deadline(tmp_path, monkeypatch):
    task = task_for("import time\ntime.sleep(600)", tmp_path, monkeypatch)
    before = children()
    task = replace(task, deadline=time.monotonic() + 0.5)
    assert apart.ask("misbehaving", task, nothing_to_say).verdict is Verdict.STOPPED
    assert children() == before


def test_what_a_solver_told_before_it_was_ended_is_kept(tmp_path, monkeypatch):
    body = "import time\ntell(2.0, task.costs)\ntell(1.0, None)\ntime.sleep(600)"
    task = task_for(body, tmp_path, monkeypatch)
    answer = ask_until_told(task)
    assert (answer.verdict, answer.bound) == (Verdict.STOPPED, 2.0)
    assert answer.values is not None
    assert np.array_equal(answer.values, task.costs)


def test_what_a_solver_started_ends_with_it(tmp_path, monkeypatch):
    body = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "tell(0.0, None)\n"
        "tell(float(child.pid), None)\n"
        "time.sleep(600)"
    )
    answer = ask_until_told(task_for(body, tmp_path, monkeypatch))
    words = ["ps", "-o", "stat=", "-p", str(int(answer.bound))]
    for _ in range(600):  # it has its signal, and ends when it runs next
        found = subprocess.run(words, capture_output=True, text=True, check=False)
        if found.stdout.strip()[:1] in ("", "Z"):  # Z: gone, and left to init
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"what the solver started is still there: {found.stdout.strip()}")


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("raise ValueError('no such thing\\nat all')", "ValueError: no such thing"),
        ("raise MemoryError", "MemoryError"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "exit code -11"),
        ("import sys\nprint('all is lost', file=sys.stderr)\nsys.exit(3)", "all is lost"),
        ("print('not for you')\nreturn Answer(Verdict.STOPPED, 3.0)", None),
    ],
)
def test_a_solver_that_fails_says_why(body, note, tmp_path, monkeypatch):
    answer = apart.ask("misbehaving", task_for(body, tmp_path, monkeypatch), nothing_to_say)
    if note is None:
        assert (answer.verdict, answer.bound) == (Verdict.STOPPED, 3.0)
    else:
        assert answer.verdict is Verdict.FAILED
        assert note in answer.note


def test_a_child_without_a_parent_ends_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(apart, "GRACE_SECONDS", 600.0)
    body = "import time\ntime.sleep(600)"
    task = task_for(body, tmp_path, monkeypatch)
    # Nobody ends it before its own timer does, ORPHAN_SECONDS after the deadline.
    deadline = time.monotonic() - apart.ORPHAN_SECONDS + 1.5
    answer = apart.ask("misbehaving", replace(task, deadline=deadline), nothing_to_say)
    assert answer.verdict is Verdict.FAILED
    assert "exit code -14" in answer.note


def test_a_highs_that_does_not_listen_does_not_block_the_next(hard, knapsack, monkeypatch):
    """What is left to its thread must not keep others from being solved."""
    monkeypatch.setattr(highs, "PATIENCE_SECONDS", 0.0)
    release = threading.Event()

    class Deaf(highs._Listener):
        def _ask(self, event):
            release.wait()
            event.interrupt(True)

    monkeypatch.setattr(highs, "_Listener", Deaf)
    task, _ = scaled(task_of(hard, deadline=time.monotonic() + 0.5))
    try:
        assert highs.solve(task, nothing_to_say).verdict is Verdict.STOPPED
        monkeypatch.undo()
        assert solve_linear(knapsack).objective == -2.0
    finally:
        release.set()
