/* Loops over a `Flat` problem: messages, memory loads, prices. `autoshard.solve.kernels` says what
   each function does, and to what. Edge e pushes M[g] to the choices of group g of one end and N[h]
   of the other; its messages lie rows first. */
#include <math.h>

#include "flat.h"

void priced_costs(const Flat *flat, const double *total, const int64_t *nodes, int64_t count,
                  double *restrict out) {
    for (int64_t position = 0; position < count; position++) {
        const int64_t node = nodes[position], start = flat->node_start[node];
        const int64_t size = size_of(flat, node);
        for (int64_t x = start; x < start + size; x++) out[x] = flat->costs[x];
        for (int64_t use = flat->use_start[node]; use < flat->use_start[node + 1]; use++) {
            const double price = total[flat->use_to[use]] - total[flat->use_from[use]];
            if (price <= 0.0) continue;
            const double *amounts = flat->amounts + flat->use_amounts[use];
            for (int64_t x = 0; x < size; x++) out[start + x] += price * amounts[x];
        }
    }
}

/* best[g] = the minimum over the other side of T - its messages. */
static void collect(const Flat *flat, int64_t e, bool to_u, const double *messages,
                    double *restrict best) {
    const int64_t rows = flat->rows[e], columns = flat->columns[e];
    const int64_t begin = flat->sparse_start[e], pairs = flat->pair_start[e];
    const double *of_rows = messages + flat->message_start[e], *of_columns = of_rows + rows;
    if (!to_u)
        for (int64_t h = 0; h < columns; h++) best[h] = HUGE_COST;
    if (pairs >= 0) {
        const int64_t *pair = flat->pair_index + pairs;
        for (int64_t g = 0; g < rows; g++) {
            const int64_t first = pair[2 * g], last = pair[2 * g + 1];
            if (to_u) {
                const double one = of_columns[first], two = of_columns[last];
                best[g] = -(one > two ? one : two);
            } else {
                const double value = -of_rows[g];
                if (value < best[first]) best[first] = value;
                if (value < best[last]) best[last] = value;
            }
        }
        return;
    }
    if (begin >= 0) {
        const int64_t *index = flat->sparse_index + begin;
        const double *values = flat->sparse_value + begin;
        for (int64_t g = 0; g < rows; g++) {
            double least = HUGE_COST;
            for (int64_t k = index[g]; k < index[g + 1]; k++) {
                const int64_t h = index[k];
                if (to_u) {
                    const double value = values[k] - of_columns[h];
                    if (value < least) least = value;
                } else {
                    const double value = values[k] - of_rows[g];
                    if (value < best[h]) best[h] = value;
                }
            }
            if (to_u) best[g] = least;
        }
        return;
    }
    for (int64_t g = 0; g < rows; g++) {
        const double *row = flat->tables + flat->table_start[e] + g * columns;
        if (to_u) {
            double least = HUGE_COST;
            for (int64_t h = 0; h < columns; h++) {
                const double value = row[h] - of_columns[h];
                least = value < least ? value : least;
            }
            best[g] = least;
        } else {
            const double shift = of_rows[g];
            for (int64_t h = 0; h < columns; h++) {
                const double value = row[h] - shift;
                best[h] = value < best[h] ? value : best[h];
            }
        }
    }
}

/* Add to `expected` the jumps of a node's mean load under the marginals of what it holds. */
static void expect_load(const Flat *flat, int64_t node, int64_t size, double spread,
                        const double *held, double *restrict best, double *restrict expected) {
    double least = HUGE_COST, total = 0.0;
    for (int64_t x = 0; x < size; x++)
        if (held[x] < least) least = held[x];
    for (int64_t x = 0; x < size; x++) {
        const double gap = (held[x] - least) / spread;
        best[x] = gap < 40.0 ? exp(-gap) : 0.0;
        total += best[x];
    }
    for (int64_t use = flat->use_start[node]; use < flat->use_start[node + 1]; use++) {
        const double *amounts = flat->amounts + flat->use_amounts[use];
        double mean = 0.0;
        for (int64_t x = 0; x < size; x++) mean += best[x] * amounts[x];
        mean /= total;
        expected[flat->use_from[use]] += mean;
        expected[flat->use_to[use]] -= mean;
    }
}

/* Hand a share of what a node holds, group by group, to an edge. */
static void hand_on(const Flat *flat, int64_t e, bool to_u, int64_t size, double share,
                    double *restrict held, double *restrict messages, double *restrict best) {
    double *mine = messages + flat->message_start[e] + (to_u ? 0 : flat->rows[e]);
    const int64_t width = to_u ? flat->rows[e] : flat->columns[e];
    const int64_t *group = flat->groups + (to_u ? flat->left_start[e] : flat->right_start[e]);
    for (int64_t g = 0; g < width; g++) best[g] = HUGE_COST;
    for (int64_t x = 0; x < size; x++)
        if (held[x] < best[group[x]]) best[group[x]] = held[x];
    for (int64_t g = 0; g < width; g++) {
        if (best[g] < GONE) {
            best[g] *= share;
            mine[g] -= best[g];
        } else {
            best[g] = 0.0;
            mine[g] = -PUSH;
        }
    }
    for (int64_t x = 0; x < size; x++) held[x] -= best[group[x]];
}

double sweep(const Flat *flat, const double *theta, bool *alive, double *messages, bool forward,
             double spread, double *expected, int64_t expected_size, double *held, double *best) {
    for (int64_t row = 0; row < expected_size; row++) expected[row] = 0.0;
    double bound = 0.0;
    for (int64_t position = 0; position < flat->nodes; position++) {
        const int64_t node = forward ? position : flat->nodes - 1 - position;
        const int64_t start = flat->node_start[node], size = size_of(flat, node);
        for (int64_t x = 0; x < size; x++) held[x] = alive[start + x] ? theta[start + x] : HUGE_COST;
        int64_t ahead = 0, behind = 0;
        for (int64_t k = flat->near_start[node]; k < flat->near_start[node + 1]; k++) {
            const int64_t e = flat->near_edge[k], other = other_end(flat, e, node);
            const bool to_u = flat->u[e] == node;
            double *mine = messages + flat->message_start[e] + (to_u ? 0 : flat->rows[e]);
            const int64_t *group = flat->groups + (to_u ? flat->left_start[e] : flat->right_start[e]);
            if ((other > node) == forward) {
                ahead++; /* It has given all that it has in the pass before, the other way. */
            } else {
                behind++;
                collect(flat, e, to_u, messages, best);
                const int64_t width = to_u ? flat->rows[e] : flat->columns[e];
                for (int64_t g = 0; g < width; g++) mine[g] = best[g];
            }
            for (int64_t x = 0; x < size; x++) held[x] += mine[group[x]];
        }
        for (int64_t x = 0; x < size; x++) {
            if (held[x] > GONE) {
                alive[start + x] = false;
                held[x] = HUGE_COST;
            }
        }
        if (flat->use_start[node] < flat->use_start[node + 1])
            expect_load(flat, node, size, spread, held, best, expected);
        int64_t parts = ahead > behind ? ahead : behind;
        for (int64_t k = flat->near_start[node]; k < flat->near_start[node + 1]; k++) {
            const int64_t e = flat->near_edge[k];
            if ((other_end(flat, e, node) > node) != forward) continue;
            hand_on(flat, e, flat->u[e] == node, size, 1.0 / (double)parts, held, messages, best);
            parts--;
        }
        double least = HUGE_COST;
        for (int64_t x = 0; x < size; x++)
            if (held[x] < least) least = held[x];
        bound += least;
    }
    return bound;
}

double appraise(const Flat *flat, const double *theta, const bool *alive, const double *messages,
                double *held, double *extra, double *best) {
    const int64_t choices = flat->node_start[flat->nodes];
    for (int64_t k = 0; k < choices; k++) held[k] = extra[k] = alive[k] ? theta[k] : HUGE_COST;
    double total = 0.0;
    for (int64_t e = 0; e < flat->edges; e++) {
        for (int side = 0; side < 2; side++) {
            const bool to_u = side == 0;
            collect(flat, e, to_u, messages, best);
            const int64_t node = to_u ? flat->u[e] : flat->v[e];
            const int64_t width = to_u ? flat->rows[e] : flat->columns[e];
            const double *mine = messages + flat->message_start[e] + (to_u ? 0 : flat->rows[e]);
            const int64_t *group = flat->groups + (to_u ? flat->left_start[e] : flat->right_start[e]);
            double least = HUGE_COST;
            for (int64_t g = 0; g < width; g++)
                if (best[g] - mine[g] < least) least = best[g] - mine[g];
            if (to_u) total += least;
            const int64_t start = flat->node_start[node];
            for (int64_t x = 0; x < size_of(flat, node); x++) {
                held[start + x] += mine[group[x]];
                extra[start + x] += best[group[x]] - least;
            }
        }
    }
    for (int64_t node = 0; node < flat->nodes; node++) {
        double least = HUGE_COST;
        for (int64_t k = flat->node_start[node]; k < flat->node_start[node + 1]; k++)
            if (held[k] < least) least = held[k];
        total += least;
        for (int64_t k = flat->node_start[node]; k < flat->node_start[node + 1]; k++)
            extra[k] -= least;
    }
    return total;
}

void silence(const Flat *flat, const bool *alive, double *messages, bool *counted) {
    for (int64_t e = 0; e < flat->edges; e++) {
        for (int side = 0; side < 2; side++) {
            const int64_t node = side == 0 ? flat->u[e] : flat->v[e];
            const int64_t width = side == 0 ? flat->rows[e] : flat->columns[e];
            double *mine = messages + flat->message_start[e] + (side == 0 ? 0 : flat->rows[e]);
            const int64_t *group =
                flat->groups + (side == 0 ? flat->left_start[e] : flat->right_start[e]);
            const bool *here = alive + flat->node_start[node];
            for (int64_t g = 0; g < width; g++) counted[g] = false;
            for (int64_t x = 0; x < size_of(flat, node); x++)
                if (here[x]) counted[group[x]] = true;
            for (int64_t g = 0; g < width; g++)
                if (!counted[g]) mine[g] = -PUSH;
        }
    }
}
