"""Loops of presolve: usages as boxes in time, memory rows that others cover (`reduce.c`).

Both read the *jumps* of a profile: at memory row r, the amount of group g (a node and one of its
usage vectors) changes by so much.
"""

from __future__ import annotations

from autoshard.native import FLAGS, FLOATS, WORD, WORDS, function
from autoshard.solve.problem import Booleans, Floats, Integers

# What is left of an amount after subtracting what should be all of it, relatively.
RESIDUE = 1e-12

_boxes = function(
    "boxes", WORDS, WORD, WORDS, FLOATS, WORDS, FLOATS, WORDS, WORDS, FLOATS, returns=WORD
)
_covered_rows = function(
    "covered_rows", WORDS, WORDS, FLOATS, FLOATS, WORD, WORD, FLOATS, WORDS, FLAGS
)


def boxes(
    group: Integers,
    row: Integers,
    jump: Floats,
    held_row: Integers,
    held_amount: Floats,
    out_jump: Integers,
    out_row: Integers,
    out_amount: Floats,
) -> int:
    """Cut step functions of time into boxes, the last to begin being the first to end.

    Jumps are sorted by group, then row, and every group's sum to zero. Box k begins at jump
    out_jump[k] (its group and row) and ends before row out_row[k]. `held_*` is scratch as long as
    the longest group. Returns how many boxes there are; there are fewer than jumps.
    """
    return _boxes(
        group, group.size, row, jump, held_row, held_amount, out_jump, out_row, out_amount
    )


def covered_rows(
    begin: Integers,
    group: Integers,
    jump: Floats,
    base: Floats,
    window: int,
    net: Floats,
    touched: Integers,
    covered: Booleans,
) -> None:
    """Mark rows whose every amount another row within `window` rows of them reaches too.

    The jumps that lead from row r - 1 to row r are begin[r] to begin[r + 1]. `net` (one per group)
    must be zero throughout, and is left so; `touched` is scratch as long as the jumps.
    """
    _covered_rows(begin, group, jump, base, base.size, window, net, touched, covered)
