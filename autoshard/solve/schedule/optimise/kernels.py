"""Compiled loops over words: when the tasks of a word run, and words by priorities.

A word lists, mesh by mesh, the letters in the order in which they run
(`autoshard.solve.schedule.optimise. flat`). `ends[l, k]` is the end of letter l for microbatch k,
`started[d]` and `ended[d]` are when mesh d begins its first and ends its last task.
"""

from __future__ import annotations

from numba import njit

compiled = njit(  # pyright: ignore[reportCallIssue]
    cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True
)
inlined = njit(inline="always")  # pyright: ignore[reportCallIssue]
NEVER = 2**62
"""The value of a word that is a deadlock."""


@inlined
def ready(a, letter, k, now, ends, count):
    """When a mesh that is free at `now` can start a task; NEVER where what it needs has not run."""
    begin = now
    for i in range(a.before_start[letter], a.before_start[letter + 1]):
        need = a.before[i]
        if count[need] <= k:
            return NEVER
        begin = max(begin, ends[need, k] + a.lag[i])
    return begin


@compiled
def run(a, word, ends, count, at, started, ended, sequence):
    """Fill in when the tasks of a word run; the value, or NEVER.

    `sequence` becomes the places of the word in an order in which each needs only earlier ones.
    """
    meshes = a.word_start.size - 1
    for letter in range(a.time.size):
        count[letter] = 0
    for d in range(meshes):
        at[d] = a.word_start[d]
        ended[d] = 0
        started[d] = 0
    left = word.size
    moved = True
    while moved:
        moved = False
        for d in range(meshes):
            stop = a.word_start[d + 1]
            now = ended[d]
            while at[d] < stop:
                letter = word[at[d]]
                k = count[letter]
                begin = ready(a, letter, k, now, ends, count)
                if begin == NEVER:
                    break
                if at[d] == a.word_start[d]:
                    started[d] = begin
                now = begin + a.time[letter]
                ends[letter, k] = now
                count[letter] = k + 1
                sequence[word.size - left] = at[d]
                at[d] += 1
                left -= 1
                moved = True
            ended[d] = now
    if left > 0:
        return NEVER
    value = 0
    for d in range(meshes):
        mine = ended[d] - (started[d] if a.span else 0)
        if mine > value:
            value = mine
    return value


@compiled
def fits(a, word):
    """Whether every mesh stays within its memory limit."""
    for d in range(a.word_start.size - 1):
        taken = 0
        for i in range(a.word_start[d], a.word_start[d + 1]):
            taken += a.take[word[i]]
            if taken > a.limit[d]:
                return False
            taken -= a.give[word[i]]
    return True


@inlined
def clear(a, count, at, taken, ended, pending, last):
    """Begin with empty words."""
    for letter in range(a.time.size):
        count[letter] = 0
    for d in range(a.word_start.size - 1):
        at[d] = a.word_start[d]
        ended[d] = 0
        taken[d] = 0
        pending[d] = 0
        last[d] = -1


@inlined
def reserve_of(a, letter, oldest, count):
    """What the other forwards of the mesh take that the oldest microbatch still needs."""
    d = a.home[letter]
    reserve = 0
    for j in range(a.letters_start[d], a.letters_start[d + 1]):
        other = a.letters[j]
        if a.is_forward[other] and other != letter and count[other] <= oldest:
            reserve += a.take[other]
    return reserve


@inlined
def score_of(a, rule, guide, letter, kind, k, wait):
    """The score of a letter of this kind for microbatch k, after so many ticks of waiting."""
    return (
        rule[kind]
        + rule[3 + kind] * a.depth[letter]
        + rule[6 + kind] * k
        + rule[9] * wait
        + rule[11] * guide[letter, k]
        + rule[14 + kind] * a.turn[letter]
    )


@compiled
def fill_gap(a, rule, d, best, best_start, ends, count, ended):
    """The letter that a mesh starts, and when: a W goes first if it fits into the gap before."""
    for j in range(a.letters_start[d], a.letters_start[d + 1]):
        letter = a.letters[j]
        k = count[letter]
        if k == a.microbatches or not a.is_weight[letter] or letter == best:
            continue
        if count[a.before[a.before_start[letter]]] <= k:
            continue
        begin = max(ended[d], ends[a.before[a.before_start[letter]], k])
        if begin + a.time[letter] * rule[10] <= best_start:
            return letter, begin
    return best, best_start


@inlined
def book(a, letter, start, word, ends, count, at, taken, ended, pending, last):
    """Put a letter that starts then at the end of what its mesh's word has so far."""
    d = a.home[letter]
    k = count[letter]
    word[at[d]] = letter
    at[d] += 1
    ends[letter, k] = start + a.time[letter]
    ended[d] = ends[letter, k]
    count[letter] = k + 1
    taken[d] += a.take[letter] - a.give[letter]
    # Once a B has run, its W can give back what it holds.
    for i in range(a.after_start[letter], a.after_start[letter + 1]):
        if a.is_weight[a.after[i]]:
            pending[d] += a.give[a.after[i]]
    if a.is_weight[letter]:
        pending[d] -= a.give[letter]
    else:
        last[d] = 0 if a.is_forward[letter] else 1


@compiled
def list_schedule(a, rule, guide, word, ends, count, at, taken, ended, pending, last):
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
    meshes = a.word_start.size - 1
    m = a.microbatches
    clear(a, count, at, taken, ended, pending, last)
    left = word.size
    while left > 0:
        # The mesh that can start first, and what it starts.
        chosen = -1
        chosen_start = NEVER
        oldest = m
        for i in range(a.sources.size):
            oldest = min(oldest, count[a.sources[i]])
        for d in range(meshes):
            if at[d] == a.word_start[d + 1] or ended[d] >= chosen_start:
                continue
            best = -1
            best_start = NEVER
            best_score = 1e300
            earliest = NEVER
            for pass_number in range(2):
                for j in range(a.letters_start[d], a.letters_start[d + 1]):
                    letter = a.letters[j]
                    k = count[letter]
                    if k == m:
                        continue
                    begin = ready(a, letter, k, ended[d], ends, count)
                    if begin == NEVER:
                        continue
                    kind = 0 if a.is_forward[letter] else (2 if a.is_weight[letter] else 1)
                    if kind == 0:
                        extra = a.take[letter]
                        if taken[d] + extra > a.limit[d]:
                            continue
                        reserve = reserve_of(a, letter, oldest, count)
                        if taken[d] - pending[d] + extra + reserve > a.limit[d]:
                            continue
                        most = rule[12] - rule[13] * a.depth[letter]
                        if k > oldest and k - count_back(a, letter, count) >= most:
                            continue
                    if pass_number == 0:
                        if begin < earliest:
                            earliest = begin
                        continue
                    score = score_of(a, rule, guide, letter, kind, k, begin - earliest)
                    if kind == last[d]:
                        score += rule[17]
                    if score < best_score:
                        best, best_score, best_start = letter, score, begin
            if best < 0:
                continue
            if best_start > earliest:
                best, best_start = fill_gap(a, rule, d, best, best_start, ends, count, ended)
            if best_start < chosen_start:
                chosen, chosen_start = best, best_start
        if chosen < 0:
            return NEVER
        book(a, chosen, chosen_start, word, ends, count, at, taken, ended, pending, last)
        left -= 1
    return 0


@compiled
def count_back(a, letter, count):
    """How many microbatches of a forward's stage have come back."""
    for i in range(a.after_start[letter], a.after_start[letter + 1]):
        other = a.after[i]
        if not a.is_forward[other] and a.home[other] == a.home[letter]:
            return count[other]
    return 0
