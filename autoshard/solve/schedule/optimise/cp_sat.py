"""The whole schedule problem as a model for CP-SAT.

    minimise   value
    start[l, k] >= start[n, k] + time[n] + lag        letter l needs letter n
    start[l, k + 1] >= start[l, k] + time[l]          microbatches in order
    no overlap of the tasks of a mesh
    memory, `autoshard.solve.schedule.optimise.cp_sat_memory`
    the work before and after each task, `autoshard.solve.schedule.optimise.cp_sat_work`
    alike W in the order of their B, `autoshard.solve.schedule.optimise.cp_sat_order`
    value >= end of the last B and W of every stage - what the mesh's time counts from

It runs in a process of its own (`autoshard.solve.backends.apart`). Starts come back as one row of
numbers.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from autoshard.solve.backends.task import Answer, Tell, Verdict
from autoshard.solve.schedule.optimise.cp_sat_memory import limit_memory
from autoshard.solve.schedule.optimise.cp_sat_order import TaskOrder
from autoshard.solve.schedule.optimise.cp_sat_work import share_time
from autoshard.solve.schedule.optimise.question import Question
from autoshard.units import counted

EFFORT, MORE_EFFORT = 5.0, 2.0
"""Deterministic seconds of CP-SAT, about those of one core, for a part; the factor for more."""
QUICK_EFFORT = 0.3
"""The same of a quick question, for which there is no more."""
EASY_TASKS = 200
"""Where there are more tasks the effort grows by their square, as the pairs of tasks do."""
SHARES = (1.0, 0.5, 0.0)
"""Parts of a question, by how far they reach from the least to the most."""


class _Part(NamedTuple):
    """What was found out about a part of a question; `starts` of the value, or None."""

    bound: int
    value: int
    starts: np.ndarray | None


def solve(question: Question, tell: Tell) -> Answer:
    """Answer the question, telling better starts and bounds as they come.

    A tighter question leaves tasks less room, and fixes the order of more of them from the start.
    So what is still possible, from `low` to `high`, is asked for in parts: all of it, its lower
    half, the least. Each is decided or given up after some effort, the same in every run; when
    none was decided, all get more. Of a quick question little is tried, and all of it alone.
    """
    low, high = question.least, question.most
    best: np.ndarray | None = None
    effort = QUICK_EFFORT if question.quick else EFFORT
    effort *= max(1.0, question.heads.size / EASY_TASKS) ** 2
    while low <= high and time.monotonic() < question.deadline:
        known = low, high
        for share in SHARES[:1] if question.quick else SHARES:
            target = low + int(share * (high - low))
            part = _part(replace(question.up_to(target), least=low), effort, tell, share)
            if part.starts is not None:
                best, high = part.starts, part.value - 1
            low = max(low, part.bound)
            tell(float(low), best)
            if low > high:
                break
        if question.quick:
            break
        if known == (low, high):
            effort *= MORE_EFFORT
    if low <= high:
        return Answer(Verdict.STOPPED, float(low), best)
    return Answer(Verdict.INFEASIBLE if best is None else Verdict.OPTIMAL, float(low), best)


def _part(question: Question, effort: float, tell: Tell, share: float) -> _Part:
    """Answer a part of a question: its best where it is all that is left, else any."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    starts = _model(model, question)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, question.deadline - time.monotonic())
    solver.parameters.max_deterministic_time = effort
    solver.parameters.stop_after_first_solution = share < 1
    solver.parameters.num_workers = question.threads
    solver.parameters.random_seed = question.seed
    if question.threads == 1:
        # The linear relaxation of disjunctions says nothing that the windows do not.
        solver.parameters.linearization_level = 0

    class Listener(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            tell(-np.inf, np.array([self.Value(start) for start in starts]))

    solver.best_bound_callback = lambda bound: tell(min(bound, question.most + 1), None)
    status = solver.Solve(model, Listener())
    if status == cp_model.MODEL_INVALID:
        raise ValueError(
            f"CP-SAT does not accept the model of {counted(len(starts), 'task')}; give times of "
            "fewer digits"
        )
    if status == cp_model.INFEASIBLE:
        return _Part(question.most + 1, 0, None)
    bound = math.ceil(solver.BestObjectiveBound() - 1e-6)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return _Part(min(bound, question.most), 0, None)
    values = np.array([solver.Value(start) for start in starts])
    value = round(solver.ObjectiveValue())
    return _Part(min(bound, value), value, values)


def _model(model: Any, question: Question) -> list[Any]:
    """Fill the model; the starts, letter by letter."""
    arrays = question.arrays
    letters, count = question.heads.shape
    times = arrays.time.tolist()
    heads, latest = question.heads.tolist(), question.latest.tolist()
    starts = [
        [model.NewIntVar(heads[x][k], max(heads[x][k], latest[x][k]), "") for k in range(count)]
        for x in range(letters)
    ]
    if any(heads[x][k] > latest[x][k] for x in range(letters) for k in range(count)):
        model.AddBoolOr([])  # no task has a place: nothing is as good as was asked for
    for letter in range(letters):
        for k in range(count):
            if k:
                model.Add(starts[letter][k] >= starts[letter][k - 1] + times[letter])
            for i in range(arrays.before_start[letter], arrays.before_start[letter + 1]):
                need = int(arrays.before[i])
                model.Add(starts[letter][k] >= starts[need][k] + times[need] + int(arrays.lag[i]))
    for forward, giver, least in question.memory_edges:
        for k, number in enumerate(least.tolist()):
            if number > 0:
                model.Add(starts[forward][k] >= starts[giver][number - 1] + times[giver])
    value = model.NewIntVar(question.least, question.most, "value")
    for mesh in range(arrays.limit.size):
        mine = arrays.letters[arrays.letters_start[mesh] : arrays.letters_start[mesh + 1]].tolist()
        model.AddNoOverlap(
            [
                model.NewFixedSizeIntervalVar(start, times[letter], "")
                for letter in mine
                for start in starts[letter]
                if times[letter] > 0
            ]
        )
        order = TaskOrder(model, question, starts)
        order.weights_follow(mine)
        limit_memory(model, question, mesh, mine, order)
        share_time(model, question, mine, order, starts)
        forwards = [letter for letter in mine if arrays.is_forward[letter]]
        for letter in mine:
            end = starts[letter][-1] + times[letter]
            if question.offset is not None:
                model.Add(value >= end - int(question.offset[mesh]))
            else:
                for forward in forwards:
                    model.Add(value >= end - starts[forward][0])
    model.Minimize(value)
    return [start for row in starts for start in row]
