"""CP-SAT in a process of its own, asked for anything better than the best word."""

from __future__ import annotations

import time

import numpy as np

from autoshard.solve.backends import apart
from autoshard.solve.backends.task import Verdict
from autoshard.solve.schedule.optimise.bounds import lower_bound, memory_edges, offsets, windows
from autoshard.solve.schedule.optimise.flat import Flat
from autoshard.solve.schedule.optimise.question import Question
from autoshard.solve.schedule.optimise.rules import scratch, value_of
from autoshard.solve.schedule.optimise.search import Search

MOST_TASKS = 1000
"""Larger problems are not handed over whole."""
SHARES = ((300, 0.9), (500, 0.6), (MOST_TASKS, 0.3))
"""Up to so many tasks CP-SAT gets this share of the time that is left, with one thread."""
PAUSE_SECONDS = 0.05
"""Between looks at the solver, where nothing else is done meanwhile."""


def prove(search: Search, *, threads: int, quick: bool = False) -> None:
    """Improve the best word of a search, or raise its bound; or only what is easy of that."""
    flat = search.flat
    tasks = int(flat.arrays.word_start[-1])
    left = search.deadline - time.monotonic()
    if tasks > MOST_TASKS or search.word is None or left <= 0:
        return
    beside = threads > 1
    share = 1.0 if beside else next(share for most, share in SHARES if tasks <= most)
    question = ask_for_better(
        flat,
        least=search.bound,
        most=search.value - 1,
        deadline=time.monotonic() + share * left,
        threads=max(1, threads - 1),
        seed=search.seed,
        quick=quick,
    )
    if question is None:  # the windows alone exclude anything better
        search.raise_bound(search.value)
        return
    room = scratch(flat)
    counts = len(search.flats) == 1  # else the bound is that of one way to fuse only

    def hear(bound: float, starts: np.ndarray | None) -> None:
        if starts is not None:
            word = word_of(flat, starts)
            search.offer(word, value_of(flat, word, room), "CP-SAT")
        if counts:
            search.raise_bound(bound)
        search.tell("CP-SAT")

    def keep_going() -> bool:
        if beside:
            search.one_round()
        else:
            time.sleep(PAUSE_SECONDS)
        return not search.done

    answer = apart.ask("schedule.optimise.cp_sat", question, hear, keep_going)
    hear(answer.bound, answer.values)
    if answer.verdict is Verdict.INFEASIBLE and counts:
        search.raise_bound(question.most + 1)


def ask_for_better(
    flat: Flat,
    *,
    least: int,
    most: int,
    deadline: float,
    threads: int,
    seed: int,
    quick: bool = False,
) -> Question | None:
    """The question whether a schedule of a value of at most `most` exists; None where none can."""
    offset = offsets(flat)
    shape = (len(flat.letters), flat.arrays.microbatches)
    if offset is None:
        lags = int(flat.arrays.lag.sum()) * shape[1]
        horizon = int(flat.arrays.time.sum()) * shape[1] + lags
        heads, latest = np.zeros(shape, np.int64), np.full(shape, horizon)
    else:
        known = windows(flat, offset)
        heads = known.heads
        latest = most - known.tails - flat.arrays.time[:, None]
        if (heads > latest).any() or lower_bound(flat) > most:
            return None
    edges = memory_edges(flat)
    return Question(
        flat.arrays, heads, latest, offset, edges, least, most, deadline, threads, seed, quick
    )


def word_of(flat: Flat, starts: np.ndarray) -> np.ndarray:
    """The word whose tasks are in the order of their starts."""
    arrays = flat.arrays
    starts = starts.reshape(len(flat.letters), arrays.microbatches).astype(np.int64)
    word = []
    for mesh in range(flat.instance.meshes):
        letters = arrays.letters[arrays.letters_start[mesh] : arrays.letters_start[mesh + 1]]
        tasks = [
            (int(start), int(start + arrays.time[letter]), int(letter))
            for letter in letters
            for start in starts[letter]
        ]
        word += [letter for _, _, letter in sorted(tasks)]
    return np.array(word, dtype=np.int64)
