"""Simulated annealing over words, in C (`anneal.c`).

A move takes one letter out of a mesh's word and puts it back a few places earlier or later. Most
moves are of letters on the critical path: the chain of tasks, each waiting for the one before, that
ends with the end of the schedule; only a change on it can make the schedule shorter. The cost that
is annealed is the value, and a little of the sum of all meshes' ends, which tells apart the many
words of the same value.

Most moves are refused, and most of those without running the whole word: the tasks that moved are
timed from the ends before them, and the longest ways to the end of the schedule that begin after
them are those of the old word (the estimate of Balas and Vazacopoulos,
https://doi.org/10.1287/mnsc.44.2.262, for job shops). What passes is run in full.
"""

from __future__ import annotations

import ctypes

import numpy as np

from autoshard.native import NUMBER, POINTER, STRUCT, WORD, WORDS, function
from autoshard.solve.problem import Integers
from autoshard.solve.schedule.optimise.flat import Arrays

_anneal = function(
    "anneal", STRUCT, WORDS, WORDS, WORD, WORD, NUMBER, NUMBER, NUMBER, WORD, POINTER, POINTER,
    WORDS, returns=WORD,
)  # fmt: skip


def anneal(
    arrays: Arrays,
    word: Integers,
    best: Integers,
    bound: int,
    steps: int,
    hot: float,
    cold: float,
    share: float,
    reach: int,
    dice: np.random.Generator,
) -> int:
    """Improve `word`; `best` becomes the best word met. Returns the best value.

    `hot` and `cold` are the first and last temperature in ticks, `share` the weight of the ends'
    sum, `reach` how far letters move at most. Ends once the value is `bound`.
    """
    letters, meshes = arrays.time.size, arrays.word_start.size - 1
    # Ends of tasks twice and their places once; seven times the places of a word.
    room = np.zeros(3 * letters * arrays.microbatches + letters + 5 * meshes + 7 * word.size, int)
    numbers = dice.bit_generator.ctypes
    following = ctypes.cast(numbers.next_double, ctypes.c_void_p)
    return _anneal(
        arrays.struct, word, best, bound, steps, hot, cold, share, reach, following,
        numbers.state_address, room,
    )  # fmt: skip
