"""Shortest paths between the states of a value, along collectives, and what is paid along them.

The loops are in `paths.c`.
"""

from __future__ import annotations

import numpy as np

from autoshard.cost.states import StateGraph
from autoshard.native import FLOATS, WORD, WORDS, function

# Distances get shorter along single edges until none does. An edge is looked at again where its
# head changed since; `changed` and `done` say when, by a clock that goes on with every state.
_relax = function("relax", WORDS, WORDS, FLOATS, WORDS, WORD, FLOATS, WORD, WORDS, WORDS)
_paid_along = function(
    "paid_along", WORDS, WORDS, FLOATS, FLOATS, FLOATS, WORDS, WORD, WORD, FLOATS
)


def shortest_distances(
    graph: StateGraph, lengths: np.ndarray, valid: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Return the shortest distances ``[states, targets]``; infinite from states not `valid`."""
    distances = np.full((len(graph.wiring.states), len(targets)), np.inf)
    distances[targets, np.arange(len(targets))] = 0.0
    changed, done = np.zeros((2, len(distances)), dtype=np.int64)
    changed[targets] = 1
    valid_states = np.flatnonzero(valid)
    _relax(
        graph.wiring.first, graph.wiring.target, lengths, valid_states, valid_states.size,
        distances, distances.shape[1], changed, done,
    )  # fmt: skip
    return distances


def paid_along(
    first: np.ndarray,
    target: np.ndarray,
    lengths: np.ndarray,
    paid: np.ndarray,
    distances: np.ndarray,
    rows: np.ndarray,
) -> np.ndarray:
    """What is paid along the shortest paths between the states `rows`, `[rows, columns]`.

    Along equally short ones the first edge of a state is taken, as `ReshardTable.path` does.
    """
    columns = distances.shape[1]
    result = np.empty((len(rows), columns))
    _paid_along(first, target, lengths, paid, distances, rows, len(rows), columns, result)
    return result
