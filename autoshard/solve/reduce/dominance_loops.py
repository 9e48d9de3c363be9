"""Choices that others of their node replace: what is compared, and the loop (`reduce.c`)."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.native import FLAGS, FLOATS, STRUCT, WORDS, Record, function
from autoshard.solve.problem import Booleans, Floats, Integers

FORBIDDEN = 1e300
"""What stands for +inf in a table, here and in `reduce.c`."""

_compare = function("compare", STRUCT, FLOATS, WORDS, FLAGS, FLAGS)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compared(Record):
    """Nodes to compare the choices of, one after another.

    Node k has choices `node_start[k]` to `node_start[k + 1]` in `costs`; their `order` (numbers
    within the node) says which of two that are as good stays: the one before. Its usage vectors
    begin at `vectors[vector_start[k] : vector_start[k + 1]]` in `amounts`, its sides of links are
    `near_start[k]` to `near_start[k + 1]`, and a loss of less than `rounding[k]` may be rounding.
    Side s has the table number `table[s]`, one row per group of its choices, `groups[group_start[s]
    + choice]`; `pair_start[s]` is where its answers begin in `dead`. Table t has `rows[t]` x
    `columns[t]` entries at `table_start[t]`; its regrets begin at `regret_start[t]`.
    """

    node_start: Integers
    costs: Floats
    order: Integers
    rounding: Floats
    vector_start: Integers
    vectors: Integers
    amounts: Floats
    near_start: Integers
    table: Integers
    group_start: Integers
    groups: Integers
    pair_start: Integers
    rows: Integers
    columns: Integers
    table_start: Integers
    regret_start: Integers
    tables: Floats

    def counts(self) -> tuple[int, ...]:
        return self.node_start.size - 1, self.rows.size


def compare(
    compared: Compared, regrets: Floats, left: Integers, dropped: Booleans, dead: Booleans
) -> None:
    """Mark in `dropped` the choices, and in `dead` the pairs, that another choice replaces.

    `dead[pair_start[s] + choice * columns + h]` is a choice beside group h of the neighbour of side
    s. Scratch: `regrets` (the squares of the rows of all tables) and `left` (sides).
    """
    _compare(compared.struct, regrets, left, dropped, dead)
