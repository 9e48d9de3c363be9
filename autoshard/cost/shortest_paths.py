"""Shortest paths between the states of a value, along collectives, and what is paid along them."""

from __future__ import annotations

import numpy as np
from numba import njit

from autoshard.cost.states import StateGraph


def shortest_distances(
    graph: StateGraph, lengths: np.ndarray, valid: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Return the shortest distances ``[states, targets]``; infinite from states not `valid`."""
    distances = np.full((len(graph.wiring.states), len(targets)), np.inf)
    distances[targets, np.arange(len(targets))] = 0.0
    changed, done = np.zeros((2, len(distances)), dtype=np.int64)
    changed[targets] = 1
    _relax(
        graph.wiring.first,
        graph.wiring.target,
        lengths,
        np.flatnonzero(valid),
        distances,
        changed,
        done,
    )
    return distances


@njit(cache=True, nogil=True)  # pyright: ignore[reportCallIssue]
def _relax(first, target, lengths, states, distances, changed, done):
    """Shorten the distances along single edges until none gets shorter.

    An edge is looked at again where its head changed since; `changed` and `done` say when, by a
    clock that goes on with every state.
    """
    clock = 1
    shorter = True
    while shorter:
        shorter = False
        for state in states:
            clock += 1
            last = done[state]
            done[state] = clock
            for edge in range(first[state], first[state + 1]):
                length = lengths[edge]
                head = target[edge]
                if length == np.inf or changed[head] <= last:
                    continue
                for column in range(distances.shape[1]):
                    ahead = distances[head, column] + length
                    if ahead < distances[state, column]:
                        distances[state, column] = ahead
                        changed[state] = clock
                        shorter = True


@njit(cache=True, nogil=True)  # pyright: ignore[reportCallIssue]
def paid_along(first, target, lengths, paid, distances, rows):
    """What is paid along the shortest paths between the states `rows`, `[rows, columns]`.

    Along equally short ones the first edge of a state is taken, as `ReshardTable.path` does.
    """
    result = np.full((len(rows), distances.shape[1]), np.inf)
    for row in range(len(rows)):
        for column in range(distances.shape[1]):
            state, total = rows[row], 0.0
            while 0.0 < distances[state, column] < np.inf:
                best, ahead = first[state], np.inf
                for edge in range(first[state], first[state + 1]):
                    length = lengths[edge] + distances[target[edge], column]
                    if length < ahead:
                        best, ahead = edge, length
                total += paid[best]
                state = target[best]
            if distances[state, column] == 0.0:
                result[row, column] = total
    return result
