"""Compiled simulated annealing over words.

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

import math

import numpy as np

from autoshard.solve.schedule.optimise.kernels import NEVER, compiled, run

ON_PATH = 0.8
"""The share of moves that are of tasks on the critical path."""
REFRESH = 8
"""After so many moves the tails and the critical path, which only guide, are found anew."""
ALONG_MESH = 0.7
"""How often the path goes on along the mesh where it could leave it as well."""


@compiled
def anneal(a, word, best, bound, steps, hot, cold, share, reach, dice):
    """Improve `word`; `best` becomes the best word met. Returns the best value.

    `hot` and `cold` are the first and last temperature in ticks, `share` the weight of the ends'
    sum, `reach` how far letters move at most, `dice` a random generator. Ends once the value is
    `bound`.
    """
    of_tasks, count, of_meshes, of_places = scratch(a, word.size)
    ends, trial_ends, where = of_tasks
    at, started, ended, trial_started, trial_ended = of_meshes
    sequence, trial_sequence, number, taken, tails, path = of_places
    trial = word.copy()
    value = run(a, word, ends, count, at, started, ended, sequence)
    best_value = value
    best[:] = word
    if value == NEVER:
        return value
    cost = value + share * ended.sum()
    length = 0
    stale = REFRESH
    ratio = math.log(cold / hot) / max(steps, 1)
    for step in range(steps):
        if stale >= REFRESH:
            describe(a, word, started, sequence, where, number, taken, tails)
            length = trace(a, word, ends, started, ended, where, number, path, dice)
            stale = 0
        if dice.random() < ON_PATH:
            i = path[int(dice.random() * length)]
        else:
            i = int(dice.random() * word.size)
        d = a.home[word[i]]
        distance = 1 + int(reach * dice.random() ** 3)
        j = i - distance if dice.random() < 0.5 else i + distance
        j = min(max(j, a.word_start[d]), a.word_start[d + 1] - 1)
        if j == i or not move(a, word, trial, i, j, number, taken, count):
            continue
        low, high = min(i, j), max(i, j)
        # What the cost may be at most for the move to be taken.
        temperature = hot * math.exp(ratio * step)
        most = cost - temperature * math.log(max(dice.random(), 1e-300))
        about = estimate(
            a, trial, low, high, ends, trial_ends, count, number, where, tails, started
        )
        new_value = NEVER
        if about + share * ended.sum() <= most:
            new_value = run(
                a, trial, trial_ends, count, at, trial_started, trial_ended, trial_sequence
            )
        if new_value < NEVER and new_value + share * trial_ended.sum() <= most:
            accept(a, word, trial, low, high, count, number, where, taken)
            ends, trial_ends = trial_ends, ends
            started, trial_started = trial_started, started
            ended, trial_ended = trial_ended, ended
            sequence, trial_sequence = trial_sequence, sequence
            value = new_value
            cost = value + share * ended.sum()
            stale += 1
            if value < best_value:
                best_value = value
                best[:] = word
                if value <= bound:
                    break
        else:
            trial[low : high + 1] = word[low : high + 1]
    return best_value


@compiled
def scratch(a, size):
    """Arrays to work in: of tasks, letters, meshes, and places of a word of this size."""
    letters, meshes, m = a.time.size, a.word_start.size - 1, a.microbatches
    tasks = np.zeros((letters, m), np.int64)
    letter = np.zeros(letters, np.int64)
    mesh = np.zeros(meshes, np.int64)
    place = np.zeros(size, np.int64)
    of_tasks = tasks, tasks.copy(), tasks.copy()
    of_meshes = mesh, mesh.copy(), mesh.copy(), mesh.copy(), mesh.copy()
    of_places = place, place.copy(), place.copy(), place.copy(), place.copy(), place.copy()
    return of_tasks, letter, of_meshes, of_places


@compiled
def accept(a, word, trial, low, high, count, number, where, taken):
    """Make the places from `low` to `high` of the word, and what is known of them, the trial's."""
    for x in range(high, low - 1, -1):
        count[word[x]] = number[x]
    memory = taken[low]
    for x in range(low, high + 1):
        letter = trial[x]
        word[x] = letter
        number[x] = count[letter]
        where[letter, count[letter]] = x
        count[letter] += 1
        taken[x] = memory
        memory += a.take[letter] - a.give[letter]


@compiled
def describe(a, word, started, sequence, where, number, taken, tails):
    """Fill in what each place of a word is: its microbatch, the memory before it, its tail.

    The tail is the longest way from the end of the task to the value; `where` are the places of
    tasks.
    """
    for d in range(a.word_start.size - 1):
        for j in range(a.letters_start[d], a.letters_start[d + 1]):
            where[a.letters[j], 0] = 0  # counts, until the letter is met for the last time
        memory = 0
        for i in range(a.word_start[d + 1] - 1, a.word_start[d] - 1, -1):
            letter = word[i]
            where[letter, 0] += 1
            number[i] = a.microbatches - where[letter, 0]
            if number[i] > 0:
                where[letter, number[i]] = i
            else:
                where[letter, 0] = i
        for i in range(a.word_start[d], a.word_start[d + 1]):
            taken[i] = memory
            memory += a.take[word[i]] - a.give[word[i]]
    for x in range(word.size - 1, -1, -1):
        i = sequence[x]
        letter, k = word[i], number[i]
        d = a.home[letter]
        tail = -started[d] if a.span else 0
        if i + 1 < a.word_start[d + 1]:
            tail = max(tail, tails[i + 1] + a.time[word[i + 1]])
        for e in range(a.after_start[letter], a.after_start[letter + 1]):
            reader = a.after[e]
            tail = max(tail, tails[where[reader, k]] + a.time[reader] + a.after_lag[e])
        tails[i] = tail


@compiled
def trace(a, word, ends, started, ended, where, number, path, dice):
    """Fill in the places on the critical path, last first; returns how many they are."""
    i, latest = 0, -1
    for d in range(a.word_start.size - 1):
        mine = ended[d] - (started[d] if a.span else 0)
        if a.word_start[d] < a.word_start[d + 1] and mine > latest:
            i, latest = a.word_start[d + 1] - 1, mine
    length = 0
    while i >= 0:
        path[length] = i
        length += 1
        letter, k = word[i], number[i]
        begin = ends[letter, k] - a.time[letter]
        earlier = -1
        for e in range(a.before_start[letter], a.before_start[letter + 1]):
            if ends[a.before[e], k] + a.lag[e] == begin:
                earlier = where[a.before[e], k]
        if (
            i > a.word_start[a.home[letter]]
            and ends[word[i - 1], number[i - 1]] == begin
            and (earlier < 0 or dice.random() < ALONG_MESH)
        ):
            earlier = i - 1
        i = earlier
    return length


@compiled
def move(a, word, trial, i, j, number, taken, count):
    """Put into `trial` the word with the letter at i moved to j; whether its mesh allows that.

    Then `count` has, of every letter that occurs between the two places, how often it occurs
    before them; of the mesh's other letters -1.
    """
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
        for x in range(low, high + 1):
            count[trial[x]] -= 1
    if not good:
        for x in range(low, high + 1):
            trial[x] = word[x]
    return good


@compiled
def estimate(a, trial, low, high, ends, trial_ends, count, number, where, tails, started):
    """About the value of a trial that differs from its word from `low` to `high` only.

    `count` is as `move` leaves it; it and `trial_ends` are written to.
    """
    d = a.home[trial[low]]
    now = ends[trial[low - 1], number[low - 1]] if low > a.word_start[d] else 0
    value = 0
    for x in range(low, high + 1):
        letter = trial[x]
        k = count[letter]
        count[letter] += 1
        for e in range(a.before_start[letter], a.before_start[letter + 1]):
            need = a.before[e]
            moved = low <= where[need, k] <= high
            now = max(now, (trial_ends[need, k] if moved else ends[need, k]) + a.lag[e])
        now += a.time[letter]
        trial_ends[letter, k] = now
        for e in range(a.after_start[letter], a.after_start[letter + 1]):
            reader = a.after[e]
            place = where[reader, k]
            if not low <= place <= high:
                value = max(value, now + a.after_lag[e] + a.time[reader] + tails[place])
    if high + 1 < a.word_start[d + 1]:
        return max(value, now + a.time[trial[high + 1]] + tails[high + 1])
    return max(value, now - (started[d] if a.span else 0))
