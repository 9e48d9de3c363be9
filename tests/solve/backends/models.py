"""Models and tasks for the exact solvers, and a problem that none of them is done with soon."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from autoshard.solve.backends.exact import Solver
from autoshard.solve.backends.linear import LinearModel, linear_model, with_memory
from autoshard.solve.backends.task import Task
from autoshard.solve.flat import Flat, flatten
from autoshard.solve.problem import Edge, Node, Problem, Usage

SOLVERS = list(Solver)


def model_of(problem: Problem, *, scaled: bool = True) -> tuple[LinearModel, Flat]:
    flat = flatten(problem)
    rows = np.arange(flat.capacity.size)
    return with_memory(linear_model(flat), flat, rows, scaled=scaled), flat


def task_of(model: LinearModel, **changes) -> Task:
    matrix = model.matrix
    task = Task(
        model.costs, model.integer, model.top, matrix.indptr, matrix.indices, matrix.data,
        model.lower, model.upper, time.monotonic() + 20.0, 1, False, None,
    )  # fmt: skip
    return replace(task, **changes)


def hard_problem(count: int = 60, choices: int = 12) -> Problem:
    """A ring with chords and tight memory: no solver here is done with it soon."""
    random = np.random.default_rng(7)
    nodes = tuple(Node(f"n{i}", random.random(choices)) for i in range(count))
    pairs = [(i, (i + step) % count) for i in range(count) for step in (1, 4, 9)]
    edges = tuple(Edge.dense(u, v, random.random((choices, choices))) for u, v in pairs)
    usages = tuple(
        Usage(i, random.integers(1, 50, choices).astype(float), i, i + 12) for i in range(count)
    )
    return Problem(nodes, edges, usages, 260.0)
