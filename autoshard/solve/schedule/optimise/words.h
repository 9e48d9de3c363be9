/* `autoshard.solve.schedule.optimise.flat.Arrays` as C sees it: the same arrays in the same order,
   then three counts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t microbatches, span;
    const int64_t *time, *home, *take, *give, *is_forward, *is_weight, *depth, *turn;
    const int64_t *before_start, *before, *lag, *after_start, *after, *after_lag;
    const int64_t *letters_start, *letters, *word_start, *limit, *sources;
    int64_t letter_count, meshes, source_count;
} Arrays;

/* The value of a word that is a deadlock. */
#define NEVER ((int64_t)1 << 62)

static inline int64_t most_of(int64_t one, int64_t other) { return one > other ? one : other; }

int64_t run_word(const Arrays *a, const int64_t *word, int64_t *ends, int64_t *count, int64_t *at,
                 int64_t *started, int64_t *ended, int64_t *sequence);
