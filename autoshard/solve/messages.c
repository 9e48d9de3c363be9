/* Loops over a `Flat` problem: messages, prices of memory. `autoshard.solve.kernels` says what each
   function does, and to what. Edge e pushes M[g] to the choices of group g of one end and N[h] of the
   other; its messages lie rows first. */
#include <math.h>
#include <string.h>

#include "flat.h"

/* What an ascent carries from pass to pass (`autoshard.solve.kernels.Standing`). */
typedef struct {
    double bound, agility, softness, upper, enough, worst;
    int64_t passes, stalled, forward, still;
} Standing;

/* The bound steps toward the incumbent, but never further up than this part of itself. */
#define REACH 0.08
/* How the steps of the prices grow with a better bound, and shrink without. */
#define BOLDER 1.05
#define SHYER 0.98
/* After so many passes far below the best bound, go back to where it was. */
#define PATIENCE 40
/* Prices move after so many passes. */
#define LED_IN 5
/* What a row's overload lately counts for; every so many passes so many rows more may be priced. */
#define LATELY 0.05
#define LOOKS 10
#define TAKEN_UP 4

static void price_node(const Flat *flat, const double *total, int64_t node, double *restrict out) {
    const int64_t start = flat->node_start[node], size = size_of(flat, node);
    for (int64_t x = start; x < start + size; x++) out[x] = flat->costs[x];
    for (int64_t use = flat->use_start[node]; use < flat->use_start[node + 1]; use++) {
        const double price = total[flat->use_to[use]] - total[flat->use_from[use]];
        if (price <= 0.0) continue;
        const double *amounts = flat->amounts + flat->use_amounts[use];
        for (int64_t x = 0; x < size; x++) out[start + x] += price * amounts[x];
    }
}

void priced_costs(const Flat *flat, const double *total, const int64_t *nodes, int64_t count,
                  double *restrict out) {
    for (int64_t position = 0; position < count; position++)
        price_node(flat, total, nodes[position], out);
}

/* best[g] = the minimum over the other side of T - its messages. */
static void collect(const Flat *flat, const Near *near, const double *messages,
                    double *restrict best) {
    const int64_t e = near->edge, rows = flat->rows[e], columns = flat->columns[e];
    const int64_t begin = flat->sparse_start[e], pairs = flat->pair_start[e];
    const bool to_u = is_u(near);
    const double *theirs = messages + near->theirs;
    if (!to_u)
        for (int64_t h = 0; h < columns; h++) best[h] = HUGE_COST;
    if (pairs >= 0) {
        const int64_t *pair = flat->pair_index + pairs;
        for (int64_t g = 0; g < rows; g++) {
            const int64_t first = pair[2 * g], last = pair[2 * g + 1];
            if (to_u) {
                const double one = theirs[first], two = theirs[last];
                best[g] = -(one > two ? one : two);
            } else {
                const double value = -theirs[g];
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
                    const double value = values[k] - theirs[h];
                    if (value < least) least = value;
                } else {
                    const double value = values[k] - theirs[g];
                    if (value < best[h]) best[h] = value;
                }
            }
            if (to_u) best[g] = least;
        }
        return;
    }
    const double *table = flat->tables + flat->table_start[e];
    for (int64_t g = 0; g < rows; g++) {
        const double *row = table + g * columns;
        if (to_u) {
            double least = HUGE_COST;
            for (int64_t h = 0; h < columns; h++) {
                const double value = row[h] - theirs[h];
                least = value < least ? value : least;
            }
            best[g] = least;
        } else {
            const double shift = theirs[g];
            for (int64_t h = 0; h < columns; h++) {
                const double value = row[h] - shift;
                best[h] = value < best[h] ? value : best[h];
            }
        }
    }
}

/* Add to `expected` the jumps of a node's mean load under the marginals of what it holds. */
static void expect_load(const Flat *flat, int64_t node, int64_t size, double spread,
                        const double *restrict held, double *restrict best,
                        double *restrict expected) {
    const double each = 1.0 / spread;
    double least = HUGE_COST, total = 0.0;
    for (int64_t x = 0; x < size; x++) least = held[x] < least ? held[x] : least;
    for (int64_t x = 0; x < size; x++) {
        /* exp(-gap), nearly: (1 - gap / 1024)^1024. */
        const double gap = (held[x] - least) * each, part = 1.0 - (gap < 40.0 ? gap : 40.0) / 1024;
        double weight = part * part;
        for (int k = 0; k < 9; k++) weight *= weight;
        best[x] = gap < 40.0 ? weight : 0.0;
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

/* Take what an edge behind can give. */
static void take(const Flat *flat, const Near *near, int64_t size, double *restrict messages,
                 double *restrict held, double *restrict best) {
    double *mine = messages + near->mine;
    collect(flat, near, messages, best);
    for (int64_t g = 0; g < near->width; g++) mine[g] = best[g];
    if (near->group < 0) {
        for (int64_t x = 0; x < size; x++) held[x] += best[x];
    } else {
        const int64_t *group = flat->groups + near->group;
        for (int64_t x = 0; x < size; x++) held[x] += best[group[x]];
    }
}

/* Add what an edge ahead gives. */
static void count_on(const Flat *flat, const Near *near, int64_t size, const double *messages,
                     double *restrict held) {
    const double *mine = messages + near->mine;
    if (near->group < 0) {
        for (int64_t x = 0; x < size; x++) held[x] += mine[x];
    } else {
        const int64_t *group = flat->groups + near->group;
        for (int64_t x = 0; x < size; x++) held[x] += mine[group[x]];
    }
}

/* Hand a share of what a node holds, group by group, to an edge. */
static void hand_on(const Flat *flat, const Near *near, int64_t size, double share,
                    double *restrict held, double *restrict messages, double *restrict best) {
    double *restrict mine = messages + near->mine;
    if (near->group < 0) {
        for (int64_t x = 0; x < size; x++) {
            const bool gone = held[x] >= GONE;
            const double part = gone ? 0.0 : held[x] * share;
            mine[x] = gone ? -PUSH : mine[x] - part;
            held[x] -= part;
        }
        return;
    }
    const int64_t *group = flat->groups + near->group;
    for (int64_t g = 0; g < near->width; g++) best[g] = HUGE_COST;
    for (int64_t x = 0; x < size; x++) {
        const double value = held[x], least = best[group[x]];
        best[group[x]] = value < least ? value : least;
    }
    for (int64_t g = 0; g < near->width; g++) {
        const bool gone = best[g] >= GONE;
        best[g] = gone ? 0.0 : best[g] * share;
        mine[g] = gone ? -PUSH : mine[g] - best[g];
    }
    for (int64_t x = 0; x < size; x++) held[x] -= best[group[x]];
}

/* Visit a node: returns the least that it holds once it has handed on what it can. */
static double visit(const Flat *flat, int64_t node, const double *theta, bool *alive,
                    double *messages, bool forward, double spread, double *expected, double *held,
                    double *best) {
    const Near *first = near_of(flat, node), *last = near_of(flat, node + 1);
    const int64_t start = flat->node_start[node], size = size_of(flat, node);
    int64_t ahead = 0, behind = 0;
    for (int64_t x = 0; x < size; x++) held[x] = alive[start + x] ? theta[start + x] : HUGE_COST;
    for (const Near *near = first; near < last; near++) {
        if ((near->other > node) == forward) {
            ahead++; /* It has given all that it has in the pass before, the other way. */
            count_on(flat, near, size, messages, held);
        } else {
            behind++;
            take(flat, near, size, messages, held, best);
        }
    }
    for (int64_t x = 0; x < size; x++) {
        const bool gone = held[x] > GONE;
        alive[start + x] &= !gone;
        held[x] = gone ? HUGE_COST : held[x];
    }
    if (expected && flat->use_start[node] < flat->use_start[node + 1])
        expect_load(flat, node, size, spread, held, best, expected);
    int64_t parts = ahead > behind ? ahead : behind;
    for (const Near *near = first; near < last; near++) {
        if ((near->other > node) != forward) continue;
        hand_on(flat, near, size, 1.0 / (double)parts, held, messages, best);
        parts--;
    }
    double least = HUGE_COST;
    for (int64_t x = 0; x < size; x++) least = held[x] < least ? held[x] : least;
    return least;
}

/* One pass over all nodes; returns the sum of the node minima after it. `expected`, where it is
   given, receives the jumps of the expected load under the node marginals at that spread. */
static double sweep(const Flat *flat, const double *theta, bool *alive, double *messages,
                    bool forward, double spread, double *expected, int64_t rows, double *held,
                    double *best) {
    double bound = 0.0;
    for (int64_t row = 0; expected && row <= rows; row++) expected[row] = 0.0;
    for (int64_t position = 0; position < flat->nodes; position++) {
        const int64_t node = forward ? position : flat->nodes - 1 - position;
        bound += visit(flat, node, theta, alive, messages, forward, spread, expected, held, best);
    }
    return bound;
}

/* Mark up to `count` rows where `values` are above zero, the largest first, none within `radius` of
   another; `values` is used up. */
static void mark_worst(double *values, int64_t rows, int64_t count, int64_t radius, bool *mark) {
    for (; count > 0; count--) {
        int64_t worst = 0;
        for (int64_t row = 1; row < rows; row++)
            if (values[row] > values[worst]) worst = row;
        if (values[worst] <= 0.0) return;
        mark[worst] = true;
        const int64_t first = worst > radius ? worst - radius : 0;
        for (int64_t row = first; row < rows && row <= worst + radius; row++) values[row] = 0.0;
    }
}

/* Move the prices along the overload of the rows that have ever been among the worst; returns
   whether they moved. `overload` has the jumps of the expected load; it and `idle` are used up. */
static bool move_prices(const Flat *flat, int64_t rows, int64_t passes, double length,
                        double *restrict prices, double *restrict usual, bool *restrict active,
                        double *restrict overload, double *restrict idle) {
    double load = 0.0, norm = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        load += overload[row];
        overload[row] = load - flat->capacity[row];
        usual[row] += LATELY * (overload[row] - usual[row]);
    }
    if (passes % LOOKS == 0) {
        for (int64_t row = 0; row < rows; row++) idle[row] = active[row] ? 0.0 : usual[row];
        mark_worst(idle, rows, TAKEN_UP, rows / 100, active);
    }
    for (int64_t row = 0; row < rows; row++) {
        const bool still = !active[row] || (prices[row] <= 0.0 && overload[row] <= 0.0);
        overload[row] = still ? 0.0 : overload[row];
        norm += overload[row] * overload[row];
    }
    if (norm <= 0.0 || length <= 0.0) return false;
    for (int64_t row = 0; row < rows; row++) {
        const double price = prices[row] + length / norm * overload[row];
        prices[row] = price > 0.0 ? price : 0.0;
    }
    return true;
}

/* What costs and capacities come to at prices of the rows: sets `theta` and `total`, and returns
   prices . capacity. */
static double price(const Flat *flat, const double *prices, int64_t rows, double *restrict total,
                    double *restrict theta) {
    double paid = 0.0;
    total[0] = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        total[row + 1] = total[row] + prices[row];
        paid += prices[row] * flat->capacity[row];
    }
    for (int64_t node = 0; node < flat->nodes; node++) price_node(flat, total, node, theta);
    return paid;
}

/* What the bound steps toward: the incumbent, or somewhat above the bound. */
static double target_of(const Standing *at) {
    const double from = at->bound > -HUGE_COST ? at->bound : 0.0;
    const double near = from + REACH * fabs(from) + 1e-4 * (at->worst - from);
    return at->upper < near ? at->upper : near;
}

/* The temperature of node marginals. */
static double spread_of(const Standing *at, double target) {
    const double spread = at->bound > -HUGE_COST ? at->softness * (target - at->bound) : 1.0;
    return fmax(spread, fmax(1e-12 * fabs(target), 1e-30));
}

/* Keep the best; step more boldly after progress, more shyly without. Returns whether prices and
   messages went back to where they were best. */
static bool judge(const Flat *flat, Standing *at, double value, int64_t rows, double *prices,
                  double *messages, double *best_prices, double *best_messages) {
    const size_t of_prices = (size_t)rows * sizeof(double);
    const size_t of_messages = (size_t)flat->message_start[flat->edges] * sizeof(double);
    if (value > at->bound) {
        at->bound = value;
        memcpy(best_prices, prices, of_prices);
        memcpy(best_messages, messages, of_messages);
        at->agility = fmin(BOLDER * at->agility, 2.0);
        at->stalled = 0;
        return false;
    }
    at->agility = fmax(SHYER * at->agility, 1e-3);
    at->stalled++;
    if (at->stalled != PATIENCE || value >= at->bound - REACH * fabs(at->bound)) return false;
    memcpy(prices, best_prices, of_prices);
    memcpy(messages, best_messages, of_messages);
    at->stalled = 0;
    return true;
}

int64_t ascend(const Flat *flat, Standing *at, bool *alive, double *prices, double *messages,
               double *best_prices, double *best_messages, double *usual, bool *active,
               double *scratch, int64_t rows, int64_t widest, int64_t most) {
    double *total = scratch, *jumps = total + rows + 1, *idle = jumps + rows + 1;
    double *held = idle + rows + 1, *best = held + widest, *theta = best + widest;
    double paid = 0.0;
    bool priced = false;
    int64_t made = 0;
    for (; made < most && at->bound <= at->worst && at->bound < at->enough; made++) {
        const double target = target_of(at), spread = spread_of(at, target);
        const bool moves = ++at->passes >= LED_IN && rows > 0 && !at->still;
        if (!priced) paid = price(flat, prices, rows, total, theta);
        const double value = sweep(flat, theta, alive, messages, at->forward, spread,
                                   moves ? jumps : 0, rows, held, best) - paid;
        at->forward = !at->forward;
        priced = !judge(flat, at, value, rows, prices, messages, best_prices, best_messages);
        if (moves && move_prices(flat, rows, at->passes, at->agility * (target - value), prices,
                                 usual, active, jumps, idle))
            priced = false;
    }
    return made;
}

double appraise(const Flat *flat, const double *theta, const bool *alive, const double *messages,
                double *held, double *extra, double *best) {
    double total = 0.0;
    for (int64_t node = 0; node < flat->nodes; node++) {
        const Near *first = near_of(flat, node), *last = near_of(flat, node + 1);
        const int64_t start = flat->node_start[node], size = size_of(flat, node);
        double *here = held + start, *over = extra + start, lowest = HUGE_COST;
        for (int64_t x = 0; x < size; x++)
            here[x] = over[x] = alive[start + x] ? theta[start + x] : HUGE_COST;
        for (const Near *near = first; near < last; near++) {
            const double *mine = messages + near->mine;
            const int64_t *group = flat->groups + near->group;
            double least = HUGE_COST;
            collect(flat, near, messages, best);
            for (int64_t g = 0; g < near->width; g++)
                if (best[g] - mine[g] < least) least = best[g] - mine[g];
            if (is_u(near)) total += least;
            for (int64_t x = 0; x < size; x++) {
                const int64_t g = near->group < 0 ? x : group[x];
                here[x] += mine[g];
                over[x] += best[g] - least;
            }
        }
        for (int64_t x = 0; x < size; x++)
            if (here[x] < lowest) lowest = here[x];
        for (int64_t x = 0; x < size; x++) over[x] -= lowest;
        total += lowest;
    }
    return total;
}

void silence(const Flat *flat, const bool *alive, double *messages, bool *counted) {
    for (int64_t node = 0; node < flat->nodes; node++) {
        const bool *here = alive + flat->node_start[node];
        for (const Near *near = near_of(flat, node); near < near_of(flat, node + 1); near++) {
            const int64_t *group = flat->groups + near->group;
            for (int64_t g = 0; g < near->width; g++) counted[g] = false;
            for (int64_t x = 0; x < size_of(flat, node); x++)
                if (here[x]) counted[near->group < 0 ? x : group[x]] = true;
            for (int64_t g = 0; g < near->width; g++)
                if (!counted[g]) messages[near->mine + g] = -PUSH;
        }
    }
}

void edge_spans(const Flat *flat, const int64_t *edges, int64_t count, double *low, double *high) {
    for (int64_t position = 0; position < count; position++) {
        const int64_t e = edges[position], begin = flat->sparse_start[e], rows = flat->rows[e];
        const double *values = flat->tables + flat->table_start[e];
        int64_t size = rows * flat->columns[e];
        if (begin >= 0) {
            values = flat->sparse_value + begin + rows + 1;
            size = flat->sparse_index[begin + rows] - rows - 1;
        }
        double least = INFINITY, most = -INFINITY;
        for (int64_t k = 0; k < size; k++) {
            if (!(values[k] < INFINITY)) continue;
            if (values[k] < least) least = values[k];
            if (values[k] > most) most = values[k];
        }
        low[position] = least;
        high[position] = most;
    }
}
