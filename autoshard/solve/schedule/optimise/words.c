/* Loops over words: when their tasks run, and words by priorities.
   `autoshard.solve.schedule.optimise.kernels` says what each function does, and to what. The end of
   letter l for microbatch k is ends[l * microbatches + k]. */
#include "words.h"

/* When a mesh that is free at `now` can start a task; NEVER where what it needs has not run. */
static int64_t ready(const Arrays *a, int64_t letter, int64_t k, int64_t now, const int64_t *ends,
                     const int64_t *count) {
    int64_t begin = now;
    for (int64_t i = a->before_start[letter]; i < a->before_start[letter + 1]; i++) {
        const int64_t need = a->before[i];
        if (count[need] <= k) return NEVER;
        begin = most_of(begin, ends[need * a->microbatches + k] + a->lag[i]);
    }
    return begin;
}

int64_t run_word(const Arrays *a, const int64_t *word, int64_t *ends, int64_t *count, int64_t *at,
                 int64_t *started, int64_t *ended, int64_t *sequence) {
    const int64_t size = a->word_start[a->meshes];
    int64_t left = size;
    bool moved = true;
    for (int64_t letter = 0; letter < a->letter_count; letter++) count[letter] = 0;
    for (int64_t d = 0; d < a->meshes; d++) {
        at[d] = a->word_start[d];
        started[d] = ended[d] = 0;
    }
    while (moved) {
        moved = false;
        for (int64_t d = 0; d < a->meshes; d++) {
            int64_t now = ended[d];
            while (at[d] < a->word_start[d + 1]) {
                const int64_t letter = word[at[d]], k = count[letter];
                const int64_t begin = ready(a, letter, k, now, ends, count);
                if (begin == NEVER) break;
                if (at[d] == a->word_start[d]) started[d] = begin;
                now = begin + a->time[letter];
                ends[letter * a->microbatches + k] = now;
                count[letter] = k + 1;
                sequence[size - left] = at[d]++;
                left--;
                moved = true;
            }
            ended[d] = now;
        }
    }
    if (left > 0) return NEVER;
    int64_t value = 0;
    for (int64_t d = 0; d < a->meshes; d++)
        value = most_of(value, ended[d] - (a->span ? started[d] : 0));
    return value;
}

bool word_fits(const Arrays *a, const int64_t *word) {
    for (int64_t d = 0; d < a->meshes; d++) {
        int64_t taken = 0;
        for (int64_t i = a->word_start[d]; i < a->word_start[d + 1]; i++) {
            taken += a->take[word[i]];
            if (taken > a->limit[d]) return false;
            taken -= a->give[word[i]];
        }
    }
    return true;
}

/* A word that is being listed, and what is known of it: by letter how often it has run; by mesh
   where its word ends so far, the memory taken and what W that can run would give back, when it is
   free, and the kind that ran last (0: F, 1: B, -1: neither; W do not count). */
typedef struct {
    int64_t *word, *ends, *count, *at, *taken, *ended, *pending, *last;
} Listed;

/* A letter that a mesh could start, and when. */
typedef struct {
    int64_t letter, start;
} Offer;

/* What the other forwards of the mesh take that the oldest microbatch still needs. */
static int64_t reserve_of(const Arrays *a, const Listed *w, int64_t letter, int64_t oldest) {
    const int64_t d = a->home[letter];
    int64_t reserve = 0;
    for (int64_t j = a->letters_start[d]; j < a->letters_start[d + 1]; j++) {
        const int64_t other = a->letters[j];
        if (a->is_forward[other] && other != letter && w->count[other] <= oldest)
            reserve += a->take[other];
    }
    return reserve;
}

/* How many microbatches of a forward's stage have come back. */
static int64_t count_back(const Arrays *a, const Listed *w, int64_t letter) {
    for (int64_t i = a->after_start[letter]; i < a->after_start[letter + 1]; i++) {
        const int64_t other = a->after[i];
        if (!a->is_forward[other] && a->home[other] == a->home[letter]) return w->count[other];
    }
    return 0;
}

/* Whether memory, and what may be in flight, allow a forward. */
static bool allowed(const Arrays *a, const double *rule, const Listed *w, int64_t letter,
                    int64_t oldest) {
    const int64_t d = a->home[letter], k = w->count[letter], extra = a->take[letter];
    if (w->taken[d] + extra > a->limit[d]) return false;
    const int64_t reserve = reserve_of(a, w, letter, oldest);
    if (w->taken[d] - w->pending[d] + extra + reserve > a->limit[d]) return false;
    const double most = rule[12] - rule[13] * (double)a->depth[letter];
    return k <= oldest || (double)(k - count_back(a, w, letter)) < most;
}

/* A W goes before what a mesh would start if it fits into the gap that this leaves. */
static Offer fill_gap(const Arrays *a, const double *rule, const Listed *w, int64_t d, Offer best) {
    for (int64_t j = a->letters_start[d]; j < a->letters_start[d + 1]; j++) {
        const int64_t letter = a->letters[j], k = w->count[letter];
        if (k == a->microbatches || !a->is_weight[letter] || letter == best.letter) continue;
        const int64_t need = a->before[a->before_start[letter]];
        if (w->count[need] <= k) continue;
        const int64_t begin = most_of(w->ended[d], w->ends[need * a->microbatches + k]);
        if ((double)begin + (double)a->time[letter] * rule[10] <= (double)best.start)
            return (Offer){letter, begin};
    }
    return best;
}

/* The letter with the least score of those that a mesh can start; letter -1 where there is none. */
static Offer offer_of(const Arrays *a, const double *rule, const double *guide, const Listed *w,
                      int64_t d, int64_t oldest) {
    Offer best = {-1, NEVER};
    double best_score = 1e300;
    int64_t earliest = NEVER;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t j = a->letters_start[d]; j < a->letters_start[d + 1]; j++) {
            const int64_t letter = a->letters[j], k = w->count[letter];
            if (k == a->microbatches) continue;
            const int64_t begin = ready(a, letter, k, w->ended[d], w->ends, w->count);
            if (begin == NEVER) continue;
            const int kind = a->is_forward[letter] ? 0 : a->is_weight[letter] ? 2 : 1;
            if (kind == 0 && !allowed(a, rule, w, letter, oldest)) continue;
            if (pass == 0) {
                if (begin < earliest) earliest = begin;
                continue;
            }
            double score = rule[kind] + rule[3 + kind] * (double)a->depth[letter] +
                           rule[6 + kind] * (double)k + rule[9] * (double)(begin - earliest) +
                           rule[11] * guide[letter * a->microbatches + k] +
                           rule[14 + kind] * (double)a->turn[letter];
            if (kind == w->last[d]) score += rule[17];
            if (score < best_score) {
                best = (Offer){letter, begin};
                best_score = score;
            }
        }
    }
    if (best.letter >= 0 && best.start > earliest) best = fill_gap(a, rule, w, d, best);
    return best;
}

/* Put a letter that starts then at the end of what its mesh's word has so far. */
static void book(const Arrays *a, Listed *w, Offer offer) {
    const int64_t letter = offer.letter, d = a->home[letter], k = w->count[letter];
    w->word[w->at[d]++] = letter;
    w->ended[d] = w->ends[letter * a->microbatches + k] = offer.start + a->time[letter];
    w->count[letter] = k + 1;
    w->taken[d] += a->take[letter] - a->give[letter];
    /* Once a B has run, its W can give back what it holds. */
    for (int64_t i = a->after_start[letter]; i < a->after_start[letter + 1]; i++)
        if (a->is_weight[a->after[i]]) w->pending[d] += a->give[a->after[i]];
    if (a->is_weight[letter])
        w->pending[d] -= a->give[letter];
    else
        w->last[d] = a->is_forward[letter] ? 0 : 1;
}

int64_t list_schedule(const Arrays *a, const double *rule, const double *guide, int64_t *word,
                      int64_t *ends, int64_t *count, int64_t *at, int64_t *taken, int64_t *ended,
                      int64_t *pending, int64_t *last) {
    Listed w = {word, ends, count, at, taken, ended, pending, last};
    for (int64_t letter = 0; letter < a->letter_count; letter++) count[letter] = 0;
    for (int64_t d = 0; d < a->meshes; d++) {
        at[d] = a->word_start[d];
        taken[d] = ended[d] = pending[d] = 0;
        last[d] = -1;
    }
    for (int64_t left = a->word_start[a->meshes]; left > 0; left--) {
        /* The mesh that can start first, and what it starts. */
        Offer chosen = {-1, NEVER};
        int64_t oldest = a->microbatches;
        for (int64_t i = 0; i < a->source_count; i++)
            if (count[a->sources[i]] < oldest) oldest = count[a->sources[i]];
        for (int64_t d = 0; d < a->meshes; d++) {
            if (at[d] == a->word_start[d + 1] || ended[d] >= chosen.start) continue;
            const Offer best = offer_of(a, rule, guide, &w, d, oldest);
            if (best.letter >= 0 && best.start < chosen.start) chosen = best;
        }
        if (chosen.letter < 0) return NEVER;
        book(a, &w, chosen);
    }
    return 0;
}
