"""Moves that re-decide a whole induced forest exactly, given the rest of the plan (`forest.c`).

Take nodes in a random order and keep each one that closes no cycle with those kept before. On the
kept nodes the problem is a forest, and dynamic programming over it finds the best joint choice
given the neighbours outside: leaf to root, message[h] = min_g ( min_{x in g} H[x] + T[g, h] ), then
root to leaf. Often more than half of all nodes are re-decided in one move. A neighbour outside is
either held at its choice, or open: then the dual's message stands for the best it will do later.

`picked` is only read. `tables` are the tables with a price in place of +inf, `conflict_cost`.
"""

from __future__ import annotations

from autoshard.native import FLAGS, FLOATS, NUMBER, STRUCT, WORD, WORDS, function
from autoshard.solve.flat import Flat
from autoshard.solve.problem import Booleans, Floats, Integers

_choose_forest = function("choose_forest", STRUCT, WORDS, WORD, FLAGS, WORDS, returns=WORD)
_solve_forest = function(
    "solve_forest", STRUCT, FLOATS, NUMBER, FLOATS, FLOATS, FLAGS, FLAGS, WORDS, WORD, WORDS,
    FLOATS, WORDS, WORDS, FLOATS, WORDS,
)  # fmt: skip


def choose_forest(flat: Flat, order: Integers, inside: Booleans, parent: Integers) -> int:
    """Mark in `inside` the nodes of `order` that close no cycle; returns how many.

    `parent` is scratch, one per node.
    """
    return _choose_forest(flat.struct, order, order.size, inside, parent)


def solve_forest(
    flat: Flat,
    tables: Floats,
    conflict_cost: float,
    theta: Floats,
    messages: Floats,
    open_nodes: Booleans,
    inside: Booleans,
    order: Integers,
    picked: Integers,
    held: Floats,
    up_edge: Integers,
    queue: Integers,
    best: Floats,
    out: Integers,
) -> None:
    """out = the cheapest plan that differs from `picked` inside the forest only.

    Neighbours marked in `open_nodes` are not decided yet: they speak through their messages. The
    nodes of the forest are those of `order` that are marked in `inside`. Scratch: `held` (choices),
    `up_edge` and `queue` (nodes), `best` (twice the longest node or table side).
    """
    _solve_forest(
        flat.struct, tables, conflict_cost, theta, messages, open_nodes, inside, order, order.size,
        picked, held, up_edge, queue, best, out,
    )  # fmt: skip
