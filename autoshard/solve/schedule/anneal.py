"""Compiled simulated annealing over words.

A move takes one letter out of a mesh's word and puts it back a few places earlier or later. Most
moves are of letters on the critical path: the chain of tasks, each waiting for the one before, that
ends with the end of the schedule; only a change on it can make the schedule shorter. The cost that
is annealed is the value, and a little of the sum of all meshes' ends, which tells apart the many
words of the same value.
"""

from __future__ import annotations

import math

import numpy as np

from autoshard.solve.schedule.kernels import NEVER, compiled, run

ON_PATH = 0.8
"""The share of moves that are of tasks on the critical path."""
ALONG_MESH = 0.7
"""How often the path goes on along the mesh where it could leave it as well."""


@compiled
def anneal(a, word, best, bound, steps, hot, cold, share, reach, dice):
    """Improve `word`; `best` becomes the best word met. Returns the best value.

    `hot` and `cold` are the first and last temperature in ticks, `share` the weight of the ends'
    sum, `reach` how far letters move at most, `dice` a random generator. Ends once the value is
    `bound`.
    """
    letters, meshes, m = a.time.size, a.word_start.size - 1, a.microbatches
    size = word.size
    ends = np.zeros((letters, m), np.int64)
    count = np.zeros(letters, np.int64)
    at = np.zeros(meshes, np.int64)
    started = np.zeros(meshes, np.int64)
    ended = np.zeros(meshes, np.int64)
    where = np.zeros((letters, m), np.int64)
    number = np.zeros(size, np.int64)
    taken = np.zeros(size, np.int64)
    path = np.zeros(size, np.int64)
    trial = word.copy()
    value = run(a, word, ends, count, at, started, ended)
    best_value = value
    best[:] = word
    if value == NEVER:
        return value
    cost = value + share * ended.sum()
    for_trace = True
    length = 0
    ratio = math.log(cold / hot) / max(steps, 1)
    for step in range(steps):
        if for_trace:
            length = trace(a, word, ends, started, ended, where, number, taken, path, dice)
            for_trace = False
        temperature = hot * math.exp(ratio * step)
        if dice.random() < ON_PATH:
            i = path[int(dice.random() * length)]
        else:
            i = int(dice.random() * size)
        letter = word[i]
        d = a.home[letter]
        low, high = a.word_start[d], a.word_start[d + 1]
        distance = 1 + int(reach * dice.random() ** 3)
        j = i - distance if dice.random() < 0.5 else i + distance
        j = min(max(j, low), high - 1)
        if j == i or not move(a, word, trial, i, j, number, taken, count):
            continue
        new_value = run(a, trial, ends, count, at, started, ended)
        new_cost = NEVER if new_value == NEVER else new_value + share * ended.sum()
        if new_value < NEVER and (
            new_cost <= cost or dice.random() < math.exp((cost - new_cost) / temperature)
        ):
            word[min(i, j) : max(i, j) + 1] = trial[min(i, j) : max(i, j) + 1]
            cost = new_cost
            value = new_value
            for_trace = True
            if value < best_value:
                best_value = value
                best[:] = word
                if value <= bound:
                    break
        else:
            trial[min(i, j) : max(i, j) + 1] = word[min(i, j) : max(i, j) + 1]
    return best_value


@compiled
def trace(a, word, ends, started, ended, where, number, taken, path, dice):
    """Fill in what each place of a word is (microbatch, memory before it) and the critical path.

    Returns the length of the path.
    """
    meshes = a.word_start.size - 1
    seen = np.zeros(a.time.size, np.int64)
    last, latest = 0, -1
    # `ends` may be those of a word that was refused.
    run(a, word, ends, seen, np.zeros(meshes, np.int64), started, ended)
    seen[:] = 0
    for d in range(meshes):
        memory = 0
        for i in range(a.word_start[d], a.word_start[d + 1]):
            letter = word[i]
            number[i] = seen[letter]
            where[letter, seen[letter]] = i
            seen[letter] += 1
            taken[i] = memory
            memory += a.take[letter] - a.give[letter]
        mine = ended[d] - (started[d] if a.span else 0)
        if a.word_start[d] < a.word_start[d + 1] and mine > latest:
            last, latest = a.word_start[d + 1] - 1, mine
    length = 0
    i = last
    while True:
        path[length] = i
        length += 1
        letter = word[i]
        k = number[i]
        d = a.home[letter]
        begin = ends[letter, k] - a.time[letter]
        earlier = -1
        for e in range(a.before_start[letter], a.before_start[letter + 1]):
            need = a.before[e]
            if ends[need, k] + a.lag[e] == begin:
                earlier = where[need, k]
        if (
            i > a.word_start[d]
            and ends[word[i - 1], number[i - 1]] == begin
            and (earlier < 0 or dice.random() < ALONG_MESH)
        ):
            earlier = i - 1
        if earlier < 0:
            return length
        i = earlier


@compiled
def move(a, word, trial, i, j, number, taken, count):
    """Put into `trial` the word with the letter at i moved to j; whether its mesh allows that."""
    letter = word[i]
    low, high = min(i, j), max(i, j)
    if i < j:
        for x in range(i, j):
            trial[x] = word[x + 1]
    else:
        for x in range(i, j, -1):
            trial[x] = word[x - 1]
    trial[j] = letter
    good = False
    for x in range(low, high + 1):
        good = good or word[x] != trial[x]
    # Between low and high the counts and the memory are others; after, they are the same again.
    memory = taken[low]
    for x in range(low, high + 1):
        memory += a.take[trial[x]]
        good = good and memory <= a.limit[a.home[letter]]
        memory -= a.give[trial[x]]
    if good:
        # What a task needs must still be before it; of letters outside the range nothing changes.
        for x in range(a.letters_start[a.home[letter]], a.letters_start[a.home[letter] + 1]):
            count[a.letters[x]] = -1
        for x in range(high, low - 1, -1):
            count[word[x]] = number[x]
        for x in range(low, high + 1):
            here = trial[x]
            for e in range(a.before_start[here], a.before_start[here + 1]):
                need = a.before[e]
                if a.home[need] == a.home[here] and 0 <= count[need] <= count[here]:
                    good = False
            count[here] += 1
    if not good:
        for x in range(low, high + 1):
            trial[x] = word[x]
    return good
