/* Loops over a `Flat` problem that make and change plans: `autoshard.solve.forest` and
   `autoshard.solve.kernels` say what each function does, and to what. */
#include "flat.h"

double plan_change(const Flat *flat, const double *tables, const int64_t *nodes, int64_t count,
                   const int64_t *old, const int64_t *new, double *jumps, int64_t jumps_size) {
    for (int64_t row = 0; row < jumps_size; row++) jumps[row] = 0.0;
    double total = 0.0;
    for (int64_t position = 0; position < count; position++) {
        const int64_t node = nodes[position], was = old[node], now = new[node];
        if (was == now) continue;
        const double *costs = flat->costs + flat->node_start[node];
        total += costs[now] - costs[was];
        for (int64_t use = flat->use_start[node]; use < flat->use_start[node + 1]; use++) {
            const double *amounts = flat->amounts + flat->use_amounts[use];
            const double more = amounts[now] - amounts[was];
            jumps[flat->use_from[use]] += more;
            jumps[flat->use_to[use]] -= more;
        }
        for (int64_t k = flat->near_start[node]; k < flat->near_start[node + 1]; k++) {
            const int64_t e = flat->near_edge[k], u = flat->u[e], v = flat->v[e];
            if (node == v && old[u] != new[u]) continue;
            const int64_t *left = flat->groups + flat->left_start[e];
            const int64_t *right = flat->groups + flat->right_start[e];
            const double *table = tables + flat->table_start[e];
            const int64_t columns = flat->columns[e];
            total += table[left[new[u]] * columns + right[new[v]]];
            total -= table[left[old[u]] * columns + right[old[v]]];
        }
    }
    return total;
}

int64_t grow_region(const Flat *flat, const int64_t *turns, int64_t size, bool *mark,
                    int64_t *order) {
    int64_t head = 0, tail = 1;
    order[0] = turns[0];
    mark[turns[0]] = true;
    while (head < tail && tail < size) {
        const int64_t node = order[head], first = flat->near_start[node];
        const int64_t width = flat->near_start[node + 1] - first;
        for (int64_t j = 0; j < width; j++) {
            const int64_t e = flat->near_edge[first + (j + turns[head]) % width];
            const int64_t other = other_end(flat, e, node);
            if (!mark[other] && tail < size) {
                mark[other] = true;
                order[tail++] = other;
            }
        }
        head++;
    }
    for (int64_t position = 0; position < tail; position++) mark[order[position]] = false;
    return tail;
}

static int64_t root_of(int64_t *parent, int64_t node) {
    while (parent[node] != node) {
        parent[node] = parent[parent[node]];
        node = parent[node];
    }
    return node;
}

/* Whether a node would close no cycle with those inside. */
static bool closes_none(const Flat *flat, int64_t node, const bool *inside, int64_t *parent) {
    const int64_t first = flat->near_start[node], last = flat->near_start[node + 1];
    for (int64_t k = first; k < last; k++) {
        const int64_t other = other_end(flat, flat->near_edge[k], node);
        if (!inside[other]) continue;
        const int64_t root = root_of(parent, other);
        for (int64_t j = first; j < k; j++) {
            const int64_t another = other_end(flat, flat->near_edge[j], node);
            if (inside[another] && root_of(parent, another) == root) return false;
        }
    }
    return true;
}

int64_t choose_forest(const Flat *flat, const int64_t *order, int64_t order_size, bool *inside,
                      int64_t *parent) {
    int64_t count = 0;
    for (int64_t node = 0; node < flat->nodes; node++) inside[node] = false;
    for (int64_t position = 0; position < order_size; position++) {
        const int64_t node = order[position];
        if (size_of(flat, node) == 1 || !closes_none(flat, node, inside, parent)) continue;
        parent[node] = node;
        for (int64_t k = flat->near_start[node]; k < flat->near_start[node + 1]; k++) {
            const int64_t other = other_end(flat, flat->near_edge[k], node);
            if (inside[other]) parent[root_of(parent, other)] = node;
        }
        inside[node] = true;
        count++;
    }
    return count;
}

/* What the choices of a node cost beside its neighbours outside of the forest; those inside that
   have no way up yet get one through it, and go into the queue. Returns the queue's new end. */
static int64_t look_around(const Flat *flat, const double *tables, const double *theta,
                           const double *messages, const bool *open_nodes, const bool *inside,
                           const int64_t *picked, double *restrict held, int64_t *up_edge,
                           int64_t *queue, int64_t tail, int64_t node) {
    const int64_t start = flat->node_start[node], size = size_of(flat, node);
    for (int64_t x = start; x < start + size; x++) held[x] = theta[x];
    for (int64_t k = flat->near_start[node]; k < flat->near_start[node + 1]; k++) {
        const int64_t e = flat->near_edge[k], other = other_end(flat, e, node);
        const bool to_u = flat->u[e] == node;
        if (inside[other]) {
            if (up_edge[other] == -2) {
                up_edge[other] = e;
                queue[tail++] = other;
            }
            continue;
        }
        const int64_t *left = flat->groups + flat->left_start[e];
        const int64_t *right = flat->groups + flat->right_start[e];
        const int64_t columns = flat->columns[e];
        if (open_nodes[other]) {
            const double *mine = messages + flat->message_start[e] + (to_u ? 0 : flat->rows[e]);
            const int64_t *group = to_u ? left : right;
            for (int64_t x = 0; x < size; x++) held[start + x] += mine[group[x]];
        } else if (to_u) {
            const double *column = tables + flat->table_start[e] + right[picked[other]];
            for (int64_t x = 0; x < size; x++) held[start + x] += column[left[x] * columns];
        } else {
            const double *row = tables + flat->table_start[e] + left[picked[other]] * columns;
            for (int64_t x = 0; x < size; x++) held[start + x] += row[right[x]];
        }
    }
    return tail;
}

/* From the leaves to the roots: add to `held` the best that is below each choice. */
static void send_up(const Flat *flat, const double *tables, double conflict_cost, int64_t tail,
                    const int64_t *up_edge, const int64_t *queue, double *restrict best,
                    double *restrict held) {
    for (int64_t position = tail - 1; position >= 0; position--) {
        const int64_t node = queue[position], e = up_edge[node];
        if (e < 0) continue;
        const int64_t rows = flat->rows[e], columns = flat->columns[e];
        const int64_t begin = flat->sparse_start[e];
        const bool from_u = flat->u[e] == node;
        const int64_t *left = flat->groups + flat->left_start[e];
        const int64_t *right = flat->groups + flat->right_start[e];
        const int64_t *here = from_u ? left : right, *there = from_u ? right : left;
        const int64_t up = from_u ? flat->v[e] : flat->u[e];
        /* One of the two is read, the other made. */
        double *of_rows = best, *of_columns = best + rows;
        double *source = from_u ? of_rows : of_columns, *target = from_u ? of_columns : of_rows;
        for (int64_t k = 0; k < rows + columns; k++) best[k] = HUGE_COST;
        double lowest = HUGE_COST;
        const double *mine = held + flat->node_start[node];
        for (int64_t x = 0; x < size_of(flat, node); x++) {
            if (mine[x] < source[here[x]]) source[here[x]] = mine[x];
            if (mine[x] < lowest) lowest = mine[x];
        }
        if (begin >= 0) {
            /* A pair that is not stored is forbidden: a conflict, at its price. */
            for (int64_t k = 0; k < (from_u ? columns : rows); k++)
                target[k] = lowest + conflict_cost;
            const int64_t *index = flat->sparse_index + begin;
            const double *values = flat->sparse_value + begin;
            for (int64_t g = 0; g < rows; g++) {
                for (int64_t k = index[g]; k < index[g + 1]; k++) {
                    const int64_t h = index[k];
                    const double value = (from_u ? of_rows[g] : of_columns[h]) + values[k];
                    double *made = from_u ? of_columns + h : of_rows + g;
                    if (value < *made) *made = value;
                }
            }
        } else {
            for (int64_t g = 0; g < rows; g++) {
                const double *row = tables + flat->table_start[e] + g * columns;
                if (from_u) {
                    const double base = of_rows[g];
                    for (int64_t h = 0; h < columns; h++) {
                        const double value = base + row[h];
                        of_columns[h] = value < of_columns[h] ? value : of_columns[h];
                    }
                } else {
                    double least = HUGE_COST;
                    for (int64_t h = 0; h < columns; h++) {
                        const double value = of_columns[h] + row[h];
                        least = value < least ? value : least;
                    }
                    of_rows[g] = least;
                }
            }
        }
        double *above = held + flat->node_start[up];
        for (int64_t x = 0; x < size_of(flat, up); x++) above[x] += target[there[x]];
    }
}

/* From the roots to the leaves: the best choice of each node, given the one above. */
static void choose_down(const Flat *flat, const double *tables, const double *held, int64_t tail,
                        const int64_t *up_edge, const int64_t *queue, int64_t *out) {
    for (int64_t position = 0; position < tail; position++) {
        const int64_t node = queue[position], e = up_edge[node];
        const double *mine = held + flat->node_start[node], *table = 0;
        const int64_t *group = 0;
        int64_t stride = 1;
        if (e >= 0) {
            const int64_t *left = flat->groups + flat->left_start[e];
            const int64_t *right = flat->groups + flat->right_start[e];
            const bool is_u = flat->u[e] == node;
            group = is_u ? left : right;
            stride = is_u ? flat->columns[e] : 1;
            table = tables + flat->table_start[e];
            table += is_u ? right[out[flat->v[e]]] : left[out[flat->u[e]]] * flat->columns[e];
        }
        double least = HUGE_COST;
        int64_t choice = 0;
        for (int64_t x = 0; x < size_of(flat, node); x++) {
            const double value = e < 0 ? mine[x] : mine[x] + table[group[x] * stride];
            if (value < least) {
                least = value;
                choice = x;
            }
        }
        out[node] = choice;
    }
}

void solve_forest(const Flat *flat, const double *tables, double conflict_cost, const double *theta,
                  const double *messages, const bool *open_nodes, const bool *inside,
                  const int64_t *order, int64_t order_size, const int64_t *picked, double *held,
                  int64_t *up_edge, int64_t *queue, double *best, int64_t *out) {
    for (int64_t node = 0; node < flat->nodes; node++) out[node] = picked[node];
    for (int64_t position = 0; position < order_size; position++)
        if (inside[order[position]]) up_edge[order[position]] = -2;
    int64_t tail = 0;
    for (int64_t position = 0; position < order_size; position++) {
        const int64_t root = order[position];
        if (!inside[root] || up_edge[root] != -2) continue;
        int64_t head = tail;
        queue[tail++] = root;
        up_edge[root] = -1;
        while (head < tail)
            tail = look_around(flat, tables, theta, messages, open_nodes, inside, picked, held,
                               up_edge, queue, tail, queue[head++]);
    }
    send_up(flat, tables, conflict_cost, tail, up_edge, queue, best, held);
    choose_down(flat, tables, held, tail, up_edge, queue, out);
}
