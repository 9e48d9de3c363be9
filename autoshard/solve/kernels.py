"""Loops over a `Flat` problem, in C: messages, memory loads, regions (`messages.c`, `forest.c`).

Messages. Edge e pushes M[g] to the choices of group g of one end and N[h] of the other; what is
left of it is  T[g, h] - M[g] - N[h], and a node holds  h[x] = priced cost[x] + sum_e
M_e[group_e(x)]. For every choice of messages

    bound = sum_i min h_i + sum_e min ( T - M - N ) - prices . capacity

is valid. A pass visits the nodes in order; each collects all that the edges behind it can give
(M[g] = min over h of T - N) and then hands shares of the result, group by group, to the edges ahead
of it. This is sequential tree-reweighted message passing (Kolmogorov,
https://doi.org/10.1109/TPAMI.2006.200) in the shares form of SRMP
(https://arxiv.org/abs/1309.5655), with groups in place of choices. A group without choices pushes
-PUSH, so that the other end no longer counts on it; a choice that thereby loses its support is gone
too, which makes the pairs arc consistent.
"""

from __future__ import annotations

from autoshard.native import FLAG, FLAGS, FLOATS, NUMBER, STRUCT, WORD, WORDS, function
from autoshard.solve.flat import Flat
from autoshard.solve.problem import Booleans, Floats, Integers

# The loops' infinity; what a group without choices pushes; and from where on a number stands for
# either. A push is so much smaller that a choice that is gone stays gone whatever is added to it.
# They stand in `flat.h` too.
HUGE, PUSH, GONE = 1e300, 1e290, 1e280

_priced_costs = function("priced_costs", STRUCT, FLOATS, WORDS, WORD, FLOATS)
_sweep = function(
    "sweep", STRUCT, FLOATS, FLAGS, FLOATS, FLAG, NUMBER, FLOATS, WORD, FLOATS, FLOATS,
    returns=NUMBER,
)  # fmt: skip
_appraise = function(
    "appraise", STRUCT, FLOATS, FLAGS, FLOATS, FLOATS, FLOATS, FLOATS, returns=NUMBER
)
_silence = function("silence", STRUCT, FLAGS, FLOATS, FLAGS)
_plan_change = function(
    "plan_change", STRUCT, FLOATS, WORDS, WORD, WORDS, WORDS, FLOATS, WORD, returns=NUMBER
)
_grow_region = function("grow_region", STRUCT, WORDS, WORD, FLAGS, WORDS, returns=WORD)


def priced_costs(flat: Flat, total: Floats, nodes: Integers, out: Floats) -> None:
    """out = costs + amounts times the prices of the rows each usage covers, at the given nodes.

    `total[t]` is the sum of the prices of the rows before t.
    """
    _priced_costs(flat.struct, total, nodes, nodes.size, out)


def sweep(
    flat: Flat,
    theta: Floats,
    alive: Booleans,
    messages: Floats,
    forward: bool,
    spread: float,
    expected: Floats,
    held: Floats,
    best: Floats,
) -> float:
    """One pass over all nodes; returns the sum of the node minima after it.

    `expected` (one more than the rows) receives the jumps of the expected memory load under the
    node marginals at temperature `spread`. `alive` marks the choices that are left; the pass takes
    away those that lost all support. `held` and `best` are scratch, as long as the longest
    node or table side.
    """
    return _sweep(
        flat.struct, theta, alive, messages, forward, spread, expected, expected.size, held, best
    )


def appraise(
    flat: Flat,
    theta: Floats,
    alive: Booleans,
    messages: Floats,
    held: Floats,
    extra: Floats,
    best: Floats,
) -> float:
    """The dual value, what the nodes hold, and by how much each choice must exceed the value.

    Returns sum_i min h_i + sum_e min (T - M - N), valid for any messages. Sets held = h and
    extra[x] = h[x] - min h + sum over edges of (the edge's minimum in the group of x - its
    minimum). `best` is scratch, as long as the longest node or table side.
    """
    return _appraise(flat.struct, theta, alive, messages, held, extra, best)


def silence(flat: Flat, alive: Booleans, messages: Floats, counted: Booleans) -> None:
    """Let groups without a choice that is alive push -PUSH; `counted` is scratch, as `best` is."""
    _silence(flat.struct, alive, messages, counted)


def plan_change(
    flat: Flat, tables: Floats, nodes: Integers, old: Integers, new: Integers, jumps: Floats
) -> float:
    """What it costs to go from plan `old` to `new`, which differ at some of the given nodes.

    `jumps` (one more than the rows) receives the jumps of the change of the memory load.
    """
    return _plan_change(flat.struct, tables, nodes, nodes.size, old, new, jumps, jumps.size)


def grow_region(flat: Flat, turns: Integers, size: int, mark: Booleans, order: Integers) -> int:
    """The first `size` nodes met by breadth-first search from turns[0]; returns how many there are.

    `turns` are random numbers that decide where each node's neighbours are begun; `mark` must be
    False throughout, and is left so.
    """
    return _grow_region(flat.struct, turns, size, mark, order)
