/* Loops over the states of a value: `autoshard.cost.shortest_paths` says what each function does.
   The edges of state s are first[s] to first[s + 1]; distances are [states, columns]. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

void relax(const int64_t *first, const int64_t *target, const double *lengths, const int64_t *states,
           int64_t count, double *distances, int64_t columns, int64_t *changed, int64_t *done) {
    int64_t clock = 1;
    bool shorter = true;
    while (shorter) {
        shorter = false;
        for (int64_t position = 0; position < count; position++) {
            const int64_t state = states[position], last = done[state];
            double *mine = distances + state * columns;
            done[state] = ++clock;
            for (int64_t edge = first[state]; edge < first[state + 1]; edge++) {
                const double length = lengths[edge];
                const int64_t head = target[edge];
                if (isinf(length) || changed[head] <= last) continue;
                const double *theirs = distances + head * columns;
                for (int64_t column = 0; column < columns; column++) {
                    const double ahead = theirs[column] + length;
                    if (ahead < mine[column]) {
                        mine[column] = ahead;
                        changed[state] = clock;
                        shorter = true;
                    }
                }
            }
        }
    }
}

void paid_along(const int64_t *first, const int64_t *target, const double *lengths,
                const double *paid, const double *distances, const int64_t *rows, int64_t count,
                int64_t columns, double *result) {
    for (int64_t row = 0; row < count; row++) {
        for (int64_t column = 0; column < columns; column++) {
            int64_t state = rows[row];
            double total = 0.0;
            while (distances[state * columns + column] > 0.0 &&
                   !isinf(distances[state * columns + column])) {
                int64_t best = first[state];
                double ahead = INFINITY;
                for (int64_t edge = first[state]; edge < first[state + 1]; edge++) {
                    const double length = lengths[edge] + distances[target[edge] * columns + column];
                    if (length < ahead) {
                        best = edge;
                        ahead = length;
                    }
                }
                total += paid[best];
                state = target[best];
            }
            const bool reached = distances[state * columns + column] == 0.0;
            result[row * columns + column] = reached ? total : INFINITY;
        }
    }
}
