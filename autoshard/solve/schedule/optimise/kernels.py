"""Loops over words, in C (`words.c`): when the tasks of a word run, and words by priorities.

A word lists, mesh by mesh, the letters in the order in which they run
(`autoshard.solve.schedule.optimise.flat`). `ends[l, k]` is the end of letter l for microbatch k,
`started[d]` and `ended[d]` are when mesh d begins its first and ends its last task. `count` is
scratch by letter, `at`, `taken`, `pending` and `last` are scratch by mesh.
"""

from __future__ import annotations

from autoshard.native import FLAG, FLOATS, STRUCT, WORD, WORDS, function
from autoshard.solve.problem import Floats, Integers
from autoshard.solve.schedule.optimise.flat import Arrays

NEVER = 2**62
"""The value of a word that is a deadlock."""

_run = function("run_word", STRUCT, *[WORDS] * 7, returns=WORD)
_fits = function("word_fits", STRUCT, WORDS, returns=FLAG)
_list_schedule = function("list_schedule", STRUCT, FLOATS, FLOATS, *[WORDS] * 8, returns=WORD)


def run(
    arrays: Arrays,
    word: Integers,
    ends: Integers,
    count: Integers,
    at: Integers,
    started: Integers,
    ended: Integers,
    sequence: Integers,
) -> int:
    """Fill in when the tasks of a word run; the value, or NEVER.

    `sequence` becomes the places of the word in an order in which each needs only earlier ones.
    """
    return _run(arrays.struct, word, ends, count, at, started, ended, sequence)


def fits(arrays: Arrays, word: Integers) -> bool:
    """Whether every mesh stays within its memory limit."""
    return _fits(arrays.struct, word)


def list_schedule(
    arrays: Arrays,
    rule: Floats,
    guide: Floats,
    word: Integers,
    ends: Integers,
    count: Integers,
    at: Integers,
    taken: Integers,
    ended: Integers,
    pending: Integers,
    last: Integers,
) -> int:
    """Fill in the word that a rule leads to; its value, or NEVER where memory does not suffice.

    Again and again the mesh that can start something first chooses among its letters the one with
    the least score. `rule` has

        0 to 8   scores of F, B and W; what each unit of depth adds to them; what each microbatch
        9        what each tick of waiting adds
        10       the share of a W that must fit into a gap for it to be put there
        11       what each unit of `guide[letter, microbatch]` adds
        12, 13   microbatches in flight at most, on a stage of depth 0; how many less on deeper ones
        14 to 16 what each turn adds to F, B and W: the first, second, ... stage of a mesh
        17       what is added to F after F, and to B after B, whatever W ran between them

    Nothing is started that leads to a deadlock for lack of memory. The oldest microbatch that has
    not come back, o, needs what its forwards that have not run take. As long as on every mesh this,
    and what is taken once all W that can run have run, are within the limit, o can run to its end,
    and after it the next: what o frees on a mesh is all that one microbatch takes there.
    """
    return _list_schedule(
        arrays.struct, rule, guide, word, ends, count, at, taken, ended, pending, last
    )
