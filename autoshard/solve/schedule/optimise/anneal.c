/* Simulated annealing over words: `autoshard.solve.schedule.optimise.anneal` says how. */
#include <math.h>
#include <string.h>

#include "words.h"

/* The share of moves that are of tasks on the critical path. */
#define ON_PATH 0.8
/* After so many moves the tails and the critical path, which only guide, are found anew. */
#define REFRESH 8
/* How often the path goes on along the mesh where it could leave it as well. */
#define ALONG_MESH 0.7

/* NumPy's random numbers, evenly in [0, 1). */
typedef struct {
    double (*next)(void *);
    void *state;
} Dice;

static double thrown(Dice dice) { return dice.next(dice.state); }

/* A word, and when its tasks run. */
typedef struct {
    int64_t *word, *ends, *started, *ended, *sequence;
} Timed;

/* What is known of the places of a word: the microbatch, the memory before, the longest way from
   the end of the task to the value; of a task (letter * microbatches + microbatch) the place. */
typedef struct {
    int64_t *number, *taken, *tails, *where, *count;
} Known;

static int64_t value_of(const Arrays *a, Timed *t, Known *known, int64_t *at) {
    return run_word(a, t->word, t->ends, known->count, at, t->started, t->ended, t->sequence);
}

static double sum_of(const int64_t *numbers, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) sum += (double)numbers[i];
    return sum;
}

/* Fill in what each place of a word is. */
static void describe(const Arrays *a, const Timed *t, Known *known) {
    const int64_t *word = t->word, m = a->microbatches;
    for (int64_t d = 0; d < a->meshes; d++) {
        /* The first entry counts, until the letter is met for the last time. */
        for (int64_t j = a->letters_start[d]; j < a->letters_start[d + 1]; j++)
            known->where[a->letters[j] * m] = 0;
        for (int64_t i = a->word_start[d + 1] - 1; i >= a->word_start[d]; i--) {
            int64_t *places = known->where + word[i] * m;
            places[0]++;
            known->number[i] = m - places[0];
            places[known->number[i]] = i;
        }
        int64_t memory = 0;
        for (int64_t i = a->word_start[d]; i < a->word_start[d + 1]; i++) {
            known->taken[i] = memory;
            memory += a->take[word[i]] - a->give[word[i]];
        }
    }
    for (int64_t x = a->word_start[a->meshes] - 1; x >= 0; x--) {
        const int64_t i = t->sequence[x], letter = word[i], k = known->number[i];
        const int64_t d = a->home[letter];
        int64_t tail = a->span ? -t->started[d] : 0;
        if (i + 1 < a->word_start[d + 1])
            tail = most_of(tail, known->tails[i + 1] + a->time[word[i + 1]]);
        for (int64_t e = a->after_start[letter]; e < a->after_start[letter + 1]; e++) {
            const int64_t reader = a->after[e], place = known->where[reader * m + k];
            tail = most_of(tail, known->tails[place] + a->time[reader] + a->after_lag[e]);
        }
        known->tails[i] = tail;
    }
}

/* Fill in the places on the critical path, last first; returns how many they are. */
static int64_t trace(const Arrays *a, const Timed *t, const Known *known, int64_t *path, Dice dice) {
    const int64_t *word = t->word, *number = known->number, m = a->microbatches;
    int64_t i = 0, latest = -1, length = 0;
    for (int64_t d = 0; d < a->meshes; d++) {
        const int64_t mine = t->ended[d] - (a->span ? t->started[d] : 0);
        if (a->word_start[d] < a->word_start[d + 1] && mine > latest) {
            i = a->word_start[d + 1] - 1;
            latest = mine;
        }
    }
    while (i >= 0) {
        path[length++] = i;
        const int64_t letter = word[i], k = number[i];
        const int64_t begin = t->ends[letter * m + k] - a->time[letter];
        int64_t earlier = -1;
        for (int64_t e = a->before_start[letter]; e < a->before_start[letter + 1]; e++) {
            const int64_t need = a->before[e] * m + k;
            if (t->ends[need] + a->lag[e] == begin) earlier = known->where[need];
        }
        if (i > a->word_start[a->home[letter]] &&
            t->ends[word[i - 1] * m + number[i - 1]] == begin &&
            (earlier < 0 || thrown(dice) < ALONG_MESH))
            earlier = i - 1;
        i = earlier;
    }
    return length;
}

/* Whether the trial of `move` keeps the memory limit, and every task after what it needs. */
static bool is_good(const Arrays *a, const int64_t *word, const int64_t *trial, int64_t low,
                    int64_t high, Known *known) {
    const int64_t d = a->home[trial[low]];
    int64_t *count = known->count, memory = known->taken[low];
    bool good = false;
    for (int64_t x = low; x <= high; x++) good |= word[x] != trial[x];
    /* Between low and high the counts and the memory are others; after, they are the same again. */
    for (int64_t x = low; x <= high; x++) {
        memory += a->take[trial[x]];
        good &= memory <= a->limit[d];
        memory -= a->give[trial[x]];
    }
    if (!good) return false;
    /* What a task needs must still be before it; of letters outside the range nothing changes. */
    for (int64_t x = a->letters_start[d]; x < a->letters_start[d + 1]; x++)
        count[a->letters[x]] = -1;
    for (int64_t x = high; x >= low; x--) count[word[x]] = known->number[x];
    for (int64_t x = low; x <= high; x++) {
        const int64_t here = trial[x];
        for (int64_t e = a->before_start[here]; e < a->before_start[here + 1]; e++) {
            const int64_t need = a->before[e];
            if (a->home[need] == d && count[need] >= 0 && count[need] <= count[here]) good = false;
        }
        count[here]++;
    }
    for (int64_t x = low; x <= high; x++) count[trial[x]]--;
    return good;
}

/* Put into `trial` the word with the letter at i moved to j; whether its mesh allows that.

   Then `count` has, of every letter that occurs between the two places, how often it occurs before
   them; of the mesh's other letters -1. */
static bool move(const Arrays *a, const int64_t *word, int64_t *trial, int64_t i, int64_t j,
                 Known *known) {
    const int64_t low = i < j ? i : j, high = i < j ? j : i;
    if (i < j)
        for (int64_t x = i; x < j; x++) trial[x] = word[x + 1];
    else
        for (int64_t x = i; x > j; x--) trial[x] = word[x - 1];
    trial[j] = word[i];
    const bool good = is_good(a, word, trial, low, high, known);
    if (!good)
        for (int64_t x = low; x <= high; x++) trial[x] = word[x];
    return good;
}

/* About the value of a trial that differs from its word from `low` to `high` only.

   `count` is as `move` leaves it; it and the trial's ends are written to. */
static int64_t estimate(const Arrays *a, const Timed *t, Timed *trial, int64_t low, int64_t high,
                        Known *known) {
    const int64_t d = a->home[trial->word[low]], m = a->microbatches;
    int64_t now = 0, value = 0;
    if (low > a->word_start[d]) now = t->ends[trial->word[low - 1] * m + known->number[low - 1]];
    for (int64_t x = low; x <= high; x++) {
        const int64_t letter = trial->word[x], k = known->count[letter]++;
        for (int64_t e = a->before_start[letter]; e < a->before_start[letter + 1]; e++) {
            const int64_t need = a->before[e] * m + k, place = known->where[need];
            const int64_t *ends = low <= place && place <= high ? trial->ends : t->ends;
            now = most_of(now, ends[need] + a->lag[e]);
        }
        now += a->time[letter];
        trial->ends[letter * m + k] = now;
        for (int64_t e = a->after_start[letter]; e < a->after_start[letter + 1]; e++) {
            const int64_t reader = a->after[e], place = known->where[reader * m + k];
            if (low <= place && place <= high) continue;
            value = most_of(value, now + a->after_lag[e] + a->time[reader] + known->tails[place]);
        }
    }
    if (high + 1 < a->word_start[d + 1])
        return most_of(value, now + a->time[trial->word[high + 1]] + known->tails[high + 1]);
    return most_of(value, now - (a->span ? t->started[d] : 0));
}

/* Make the places from `low` to `high` of the word, and what is known of them, the trial's. */
static void accept(const Arrays *a, int64_t *word, const int64_t *trial, int64_t low, int64_t high,
                   Known *known) {
    int64_t memory = known->taken[low];
    for (int64_t x = high; x >= low; x--) known->count[word[x]] = known->number[x];
    for (int64_t x = low; x <= high; x++) {
        const int64_t letter = word[x] = trial[x];
        known->number[x] = known->count[letter]++;
        known->where[letter * a->microbatches + known->number[x]] = x;
        known->taken[x] = memory;
        memory += a->take[letter] - a->give[letter];
    }
}

/* The two words swap all but the words themselves, which `accept` has made equal. */
static void swap(Timed *one, Timed *other) {
    const Timed kept = *one;
    *one = (Timed){one->word, other->ends, other->started, other->ended, other->sequence};
    *other = (Timed){other->word, kept.ends, kept.started, kept.ended, kept.sequence};
}

static int64_t *cut(int64_t **room, int64_t size) {
    int64_t *part = *room;
    *room += size;
    return part;
}

int64_t anneal(const Arrays *a, int64_t *word, int64_t *best, int64_t bound, int64_t steps,
               double hot, double cold, double share, int64_t reach, double (*next)(void *),
               void *state, int64_t *room) {
    const int64_t size = a->word_start[a->meshes], tasks = a->letter_count * a->microbatches;
    const Dice dice = {next, state};
    Timed t = {.word = word}, trial = {.word = cut(&room, size)};
    for (Timed *each = &t; each; each = each == &t ? &trial : 0) {
        each->ends = cut(&room, tasks);
        each->started = cut(&room, a->meshes);
        each->ended = cut(&room, a->meshes);
        each->sequence = cut(&room, size);
    }
    Known known = {cut(&room, size), cut(&room, size), cut(&room, size), cut(&room, tasks),
                   cut(&room, a->letter_count)};
    int64_t *at = cut(&room, a->meshes), *path = cut(&room, size);
    memcpy(trial.word, word, (size_t)size * sizeof *word);
    memcpy(best, word, (size_t)size * sizeof *word);
    int64_t value = value_of(a, &t, &known, at), best_value = value;
    if (value == NEVER) return value;
    double cost = (double)value + share * sum_of(t.ended, a->meshes);
    int64_t length = 0, stale = REFRESH;
    const double ratio = log(cold / hot) / (double)most_of(steps, 1);
    for (int64_t step = 0; step < steps; step++) {
        if (stale >= REFRESH) {
            describe(a, &t, &known);
            length = trace(a, &t, &known, path, dice);
            stale = 0;
        }
        const bool on_path = thrown(dice) < ON_PATH;
        const int64_t drawn = (int64_t)(thrown(dice) * (double)(on_path ? length : size));
        const int64_t i = on_path ? path[drawn] : drawn, d = a->home[word[i]];
        const double far = thrown(dice);
        const int64_t distance = 1 + (int64_t)((double)reach * far * far * far);
        int64_t j = thrown(dice) < 0.5 ? i - distance : i + distance;
        if (j < a->word_start[d]) j = a->word_start[d];
        if (j > a->word_start[d + 1] - 1) j = a->word_start[d + 1] - 1;
        if (j == i || !move(a, word, trial.word, i, j, &known)) continue;
        const int64_t low = i < j ? i : j, high = i < j ? j : i;
        /* What the cost may be at most for the move to be taken. */
        const double luck = thrown(dice);
        const double most = cost - hot * exp(ratio * (double)step) * log(luck > 1e-300 ? luck : 1e-300);
        const int64_t about = estimate(a, &t, &trial, low, high, &known);
        int64_t new_value = NEVER;
        if ((double)about + share * sum_of(t.ended, a->meshes) <= most)
            new_value = value_of(a, &trial, &known, at);
        if (new_value < NEVER &&
            (double)new_value + share * sum_of(trial.ended, a->meshes) <= most) {
            accept(a, word, trial.word, low, high, &known);
            swap(&t, &trial);
            value = new_value;
            cost = (double)value + share * sum_of(t.ended, a->meshes);
            stale++;
            if (value < best_value) {
                best_value = value;
                memcpy(best, word, (size_t)size * sizeof *word);
                if (value <= bound) break;
            }
        } else {
            memcpy(trial.word + low, word + low, (size_t)(high - low + 1) * sizeof *word);
        }
    }
    return best_value;
}
