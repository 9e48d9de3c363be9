"""The compiled loop of `autoshard.solve.reduce.dominance`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoshard.solve.kernels import compiled, inner

FORBIDDEN = 1e300
"""What stands for +inf in a table."""
JUDGES = 500
"""Choices are compared with so many of their node, the first in order."""
EXCLUDED = 0.5e300
"""A largest excess from here on means that the judge forbids what the judged allows."""


class Compared(NamedTuple):
    """Nodes to compare the choices of, one after another.

    Node k has choices `node_start[k]` to `node_start[k + 1]` in `costs`; their `order` (numbers
    within the node) says which of two that are as good stays: the one before. Its usage vectors
    begin at `vectors[vector_start[k] : vector_start[k + 1]]` in `amounts`, its sides of links are
    `near_start[k]` to `near_start[k + 1]`, and a loss of less than `rounding[k]` may be rounding.
    Side s has the table number `table[s]`, one row per group of its choices, `groups[group_start[s]
    + choice]`; `pair_start[s]` is where its answers begin in `dead`. Table t has `rows[t]` x
    `columns[t]` entries at `table_start[t]`; its regrets begin at `regret_start[t]`.
    """

    node_start: np.ndarray
    costs: np.ndarray
    order: np.ndarray
    rounding: np.ndarray
    vector_start: np.ndarray
    vectors: np.ndarray
    amounts: np.ndarray
    near_start: np.ndarray
    table: np.ndarray
    group_start: np.ndarray
    groups: np.ndarray
    pair_start: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    table_start: np.ndarray
    regret_start: np.ndarray
    tables: np.ndarray


@inner
def find_regrets(c, regrets):
    """By how much each row of a table exceeds each other one at most, where that allows a pair."""
    tables = c.tables
    for t in range(c.rows.size):
        start, columns = c.table_start[t], c.columns[t]
        for g in range(c.rows[t]):
            for h in range(c.rows[t]):
                worst = -FORBIDDEN
                for k in range(columns):
                    rival = tables[start + h * columns + k]
                    if rival < FORBIDDEN:
                        worst = max(worst, tables[start + g * columns + k] - rival)
                regrets[c.regret_start[t] + g * c.rows[t] + h] = worst


@inner
def find_forbidden(c, left, dead, node, x):
    """Mark in `dead` the pairs of a choice that are forbidden; `left` counts the others."""
    for s in range(c.near_start[node], c.near_start[node + 1]):
        left[s] = 0
        table = c.table[s]
        columns = c.columns[table]
        answer = c.pair_start[s] + x * columns
        mine = c.table_start[table] + c.groups[c.group_start[s] + x] * columns
        for k in range(columns):
            dead[answer + k] = c.tables[mine + k] >= FORBIDDEN
            left[s] += not dead[answer + k]


@inner
def judge(c, regrets, left, dropped, dead, node, position):
    """Hold the choice of a node that is at a position of its order to others of the node."""
    costs, tables, groups, amounts, table = c.costs, c.tables, c.groups, c.amounts, c.table
    start = c.node_start[node]
    size = c.node_start[node + 1] - start
    sides = range(c.near_start[node], c.near_start[node + 1])
    x = c.order[start + position]
    find_forbidden(c, left, dead, node, x)
    for rival in range(min(size, JUDGES)):
        y = c.order[start + rival]
        loss = costs[start + y] - costs[start + x]
        stops = 2 if x == y else 0
        for k in range(c.vector_start[node], c.vector_start[node + 1]):
            if amounts[c.vectors[k] + y] > amounts[c.vectors[k] + x]:
                stops = 2
                break
        gain = 0.0
        for s in sides:
            if stops > 1:
                break
            rows, at = c.rows[table[s]], c.regret_start[table[s]]
            g, h = groups[c.group_start[s] + x], groups[c.group_start[s] + y]
            worst, best = regrets[at + h * rows + g], regrets[at + g * rows + h]
            if worst >= EXCLUDED:
                stops += 1
                worst = 0.0
            loss += worst
            gain = max(gain, worst + best)
        least = 0.0 if rival < position else -c.rounding[node]
        if stops > 1 or loss - gain > least:
            continue
        if c.near_start[node] == c.near_start[node + 1]:
            dropped[start + x] = True
        for s in sides:
            rows, columns = c.rows[table[s]], c.columns[table[s]]
            g, h = groups[c.group_start[s] + x], groups[c.group_start[s] + y]
            at = c.regret_start[table[s]]
            worst, best = regrets[at + h * rows + g], regrets[at + g * rows + h]
            if worst >= EXCLUDED:
                worst = 0.0
            elif stops == 1:
                continue
            if loss - worst - best > least:
                continue
            mine = c.table_start[table[s]] + g * columns
            theirs = c.table_start[table[s]] + h * columns
            answer = c.pair_start[s] + x * columns
            for k in range(columns):
                if dead[answer + k]:
                    continue
                if loss - worst + tables[theirs + k] - tables[mine + k] <= least:
                    dead[answer + k] = True
                    left[s] -= 1
            if left[s] == 0:
                dropped[start + x] = True
        if dropped[start + x]:
            break


@compiled
def compare(c, regrets, left, dropped, dead):
    """Mark in `dropped` the choices, and in `dead` the pairs, that another choice replaces.

    `dead[pair_start[s] + choice * columns + h]` is a choice beside group h of the neighbour of side
    s. Scratch: `regrets` (the squares of the rows of all tables) and `left` (sides).
    """
    find_regrets(c, regrets)
    for node in range(c.node_start.size - 1):
        for position in range(c.node_start[node + 1] - c.node_start[node]):
            judge(c, regrets, left, dropped, dead, node, position)
