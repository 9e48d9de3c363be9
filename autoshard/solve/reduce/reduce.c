/* Loops of presolve: `autoshard.solve.reduce.dominance_loops` and `.reduction_loops` say what each
   function does, and to what. */
#include <stdbool.h>
#include <stdint.h>

/* What stands for +inf in a table; a largest excess from EXCLUDED on means that the judge forbids
   what the judged allows. */
#define FORBIDDEN 1e300
#define EXCLUDED 0.5e300
/* Choices are compared with so many of their node, the first in order. */
#define JUDGES 500
/* What is left of an amount after subtracting what should be all of it, relatively. */
#define RESIDUE 1e-12

typedef struct {
    const int64_t *node_start;
    const double *costs;
    const int64_t *order;
    const double *rounding;
    const int64_t *vector_start, *vectors;
    const double *amounts;
    const int64_t *near_start, *table, *group_start, *groups, *pair_start;
    const int64_t *rows, *columns, *table_start, *regret_start;
    const double *tables;
    int64_t nodes, distinct;
} Compared;

/* By how much each row of a table exceeds each other one at most, where that allows a pair. */
static void find_regrets(const Compared *c, double *restrict regrets) {
    for (int64_t t = 0; t < c->distinct; t++) {
        const int64_t rows = c->rows[t], columns = c->columns[t];
        const double *table = c->tables + c->table_start[t];
        for (int64_t g = 0; g < rows; g++) {
            const double *mine = table + g * columns;
            for (int64_t h = 0; h < rows; h++) {
                const double *rival = table + h * columns;
                double worst = -FORBIDDEN;
                for (int64_t k = 0; k < columns; k++) {
                    const double excess = mine[k] - rival[k];
                    worst = rival[k] < FORBIDDEN && excess > worst ? excess : worst;
                }
                regrets[c->regret_start[t] + g * rows + h] = worst;
            }
        }
    }
}

/* Mark in `dead` the pairs of a choice that are forbidden; `left` counts the others. */
static void find_forbidden(const Compared *c, int64_t *left, bool *dead, int64_t node, int64_t x) {
    for (int64_t s = c->near_start[node]; s < c->near_start[node + 1]; s++) {
        const int64_t t = c->table[s], columns = c->columns[t];
        const double *mine =
            c->tables + c->table_start[t] + c->groups[c->group_start[s] + x] * columns;
        bool *answer = dead + c->pair_start[s] + x * columns;
        left[s] = 0;
        for (int64_t k = 0; k < columns; k++) {
            answer[k] = mine[k] >= FORBIDDEN;
            left[s] += !answer[k];
        }
    }
}

/* The largest and least excess of choice y over choice x of a side: regrets of their rows. */
static void excess(const Compared *c, const double *regrets, int64_t s, int64_t x, int64_t y,
                   double *worst, double *least) {
    const int64_t t = c->table[s], rows = c->rows[t];
    const int64_t g = c->groups[c->group_start[s] + x], h = c->groups[c->group_start[s] + y];
    const double *mine = regrets + c->regret_start[t];
    *worst = mine[h * rows + g];
    *least = mine[g * rows + h];
}

/* Hold the choice of a node that is at a position of its order to others of the node. */
static void judge(const Compared *c, const double *regrets, int64_t *left, bool *dropped, bool *dead,
                  int64_t node, int64_t position) {
    const int64_t start = c->node_start[node], size = c->node_start[node + 1] - start;
    const int64_t begin = c->near_start[node], end = c->near_start[node + 1];
    const int64_t x = c->order[start + position];
    double worst, best;
    find_forbidden(c, left, dead, node, x);
    for (int64_t rival = 0; rival < (size < JUDGES ? size : JUDGES); rival++) {
        const int64_t y = c->order[start + rival];
        double loss = c->costs[start + y] - c->costs[start + x], gain = 0.0;
        int stops = x == y ? 2 : 0;
        for (int64_t k = c->vector_start[node]; k < c->vector_start[node + 1]; k++) {
            const double *amounts = c->amounts + c->vectors[k];
            if (amounts[y] > amounts[x]) {
                stops = 2;
                break;
            }
        }
        for (int64_t s = begin; s < end && stops <= 1; s++) {
            excess(c, regrets, s, x, y, &worst, &best);
            if (worst >= EXCLUDED) {
                stops++;
                worst = 0.0;
            }
            loss += worst;
            if (worst + best > gain) gain = worst + best;
        }
        const double least = rival < position ? 0.0 : -c->rounding[node];
        if (stops > 1 || loss - gain > least) continue;
        if (begin == end) dropped[start + x] = true;
        for (int64_t s = begin; s < end; s++) {
            excess(c, regrets, s, x, y, &worst, &best);
            if (worst >= EXCLUDED)
                worst = 0.0;
            else if (stops == 1)
                continue;
            if (loss - worst - best > least) continue;
            const int64_t t = c->table[s], columns = c->columns[t];
            const int64_t *groups = c->groups + c->group_start[s];
            const double *table = c->tables + c->table_start[t];
            const double *mine = table + groups[x] * columns, *theirs = table + groups[y] * columns;
            bool *answer = dead + c->pair_start[s] + x * columns;
            for (int64_t k = 0; k < columns; k++) {
                if (!answer[k] && loss - worst + theirs[k] - mine[k] <= least) {
                    answer[k] = true;
                    left[s]--;
                }
            }
            if (left[s] == 0) dropped[start + x] = true;
        }
        if (dropped[start + x]) break;
    }
}

void compare(const Compared *c, double *regrets, int64_t *left, bool *dropped, bool *dead) {
    find_regrets(c, regrets);
    for (int64_t node = 0; node < c->nodes; node++)
        for (int64_t at = 0; at < c->node_start[node + 1] - c->node_start[node]; at++)
            judge(c, regrets, left, dropped, dead, node, at);
}

int64_t boxes(const int64_t *group, int64_t size, const int64_t *row, const double *jump,
              int64_t *held_row, double *held_amount, int64_t *out_jump, int64_t *out_row,
              double *out_amount) {
    int64_t count = 0, depth = 0;
    for (int64_t k = 0; k < size; k++) {
        if (k == 0 || group[k] != group[k - 1]) depth = 0;
        if (jump[k] > 0.0) {
            held_row[depth] = k;
            held_amount[depth++] = jump[k];
            continue;
        }
        double left = -jump[k];
        const double floor = RESIDUE * left;
        while (left > floor && depth > 0) {
            const double top = held_amount[depth - 1], taken = top < left ? top : left;
            out_jump[count] = held_row[depth - 1];
            out_row[count] = row[k];
            out_amount[count++] = taken;
            left -= taken;
            if (top - taken <= RESIDUE * top)
                depth--;
            else
                held_amount[depth - 1] = top - taken;
        }
    }
    return count;
}

void covered_rows(const int64_t *begin, const int64_t *group, const double *jump, const double *base,
                  int64_t rows, int64_t window, double *net, int64_t *touched, bool *covered) {
    for (int side = 0; side < 2; side++) {
        for (int64_t row = 0; row < rows; row++) {
            if (covered[row]) continue;
            int64_t missing = 0, count = 0, other = row;
            for (int64_t step = 0; step < window; step++) {
                other += side == 0 ? 1 : -1;
                if (other < 0 || other >= rows) break;
                const int64_t at = side == 0 ? other : other + 1;
                for (int64_t k = begin[at]; k < begin[at + 1]; k++) {
                    const double before = net[group[k]];
                    const double after = side == 0 ? before + jump[k] : before - jump[k];
                    net[group[k]] = after;
                    touched[count++] = group[k];
                    if (before < 0.0 && after >= 0.0)
                        missing--;
                    else if (before >= 0.0 && after < 0.0)
                        missing++;
                }
                if (missing == 0 && !covered[other] && base[other] >= base[row]) {
                    covered[row] = true;
                    break;
                }
            }
            for (int64_t k = 0; k < count; k++) net[touched[k]] = 0.0;
        }
    }
}
