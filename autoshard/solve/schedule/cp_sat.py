"""The whole schedule problem as a model for CP-SAT.

    minimise   value
    start[l, k] >= start[n, k] + time[n] + lag        letter l needs letter n
    start[l, k + 1] >= start[l, k] + time[l]          microbatches in order
    no overlap of the tasks of a mesh
    memory, `autoshard.solve.schedule.cp_sat_memory`
    value >= end of the last B and W of every stage - what the mesh's time counts from

It runs in a process of its own (`autoshard.solve.apart`). Starts come back as one row of numbers.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from autoshard.solve.schedule.cp_sat_memory import limit_memory
from autoshard.solve.schedule.question import Question
from autoshard.solve.task import Answer, Tell, Verdict


def solve(question: Question, tell: Tell) -> Answer:
    """Answer the question, telling better starts and bounds as they come."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    starts = _model(model, question)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.01, question.deadline - time.monotonic())
    solver.parameters.num_workers = question.threads
    solver.parameters.random_seed = question.seed
    if question.threads == 1:
        # The linear relaxation of disjunctions says nothing that the windows do not.
        solver.parameters.linearization_level = 0

    class Listener(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            tell(self.BestObjectiveBound(), np.array([self.Value(start) for start in starts]))

    solver.best_bound_callback = lambda bound: tell(bound, None)
    status = solver.Solve(model, Listener())
    if status == cp_model.INFEASIBLE:
        return Answer(Verdict.INFEASIBLE, float(question.most + 1))
    if status == cp_model.MODEL_INVALID:
        return Answer(Verdict.FAILED, note="CP-SAT does not accept the model")
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    values = np.array([solver.Value(start) for start in starts]) if found else None
    verdict = Verdict.OPTIMAL if status == cp_model.OPTIMAL else Verdict.STOPPED
    return Answer(verdict, solver.BestObjectiveBound(), values)


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
        limit_memory(model, question, mesh, mine, starts)
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
