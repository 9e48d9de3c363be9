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

import ctypes

from autoshard.native import FLAGS, FLOATS, NUMBER, POINTER, STRUCT, WORD, WORDS, function
from autoshard.solve.flat import Flat
from autoshard.solve.problem import Booleans, Floats, Integers

# The loops' infinity; what a group without choices pushes; and from where on a number stands for
# either. A push is so much smaller that a choice that is gone stays gone whatever is added to it.
# They stand in `flat.h` too.
HUGE, PUSH, GONE = 1e300, 1e290, 1e280

_priced_costs = function("priced_costs", STRUCT, FLOATS, WORDS, WORD, FLOATS)
_ascend = function(
    "ascend", STRUCT, POINTER, FLAGS, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, FLAGS, FLOATS,
    WORD, WORD, WORD, returns=WORD,
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


class Standing(ctypes.Structure):
    """What an ascent carries from pass to pass beside its arrays (`autoshard.solve.dual`).

    `upper` is the cost of the incumbent; a bound of `enough`, or above `worst`, ends the passes.
    """

    _fields_ = [
        *((name, NUMBER) for name in ("bound", "agility", "softness", "upper", "enough", "worst")),
        *((name, WORD) for name in ("passes", "stalled", "forward", "still")),
    ]


def ascend(
    flat: Flat,
    at: Standing,
    alive: Booleans,
    prices: Floats,
    messages: Floats,
    best_prices: Floats,
    best_messages: Floats,
    usual: Floats,
    active: Booleans,
    scratch: Floats,
    passes: int,
) -> int:
    """Up to so many passes, and steps of the prices; returns how many there were.

    `alive` marks the choices that are left; a pass takes away those that lost all support. `usual`
    is the overload of the rows lately, `active` marks those whose prices move. `scratch` is for
    `scratch_size` numbers.
    """
    return _ascend(
        flat.struct, ctypes.addressof(at), alive, prices, messages, best_prices, best_messages,
        usual, active, scratch, flat.capacity.size, flat.widest, passes,
    )  # fmt: skip


def scratch_size(flat: Flat) -> int:
    """How many numbers an ascent works with beside those that it keeps."""
    return flat.costs.size + 3 * (flat.capacity.size + 1) + 2 * flat.widest


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
