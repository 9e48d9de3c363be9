/* Choices that fit beside nothing. `autoshard.solve.branch.squeeze` says what it does, and to what. */
#include "../flat.h"

/* The least amounts of all usages among the choices alive; false when a node has none. */
static bool lightest(const Flat *flat, const bool *alive, double *least, double *slack,
                     int64_t rows, double *most) {
    for (int64_t row = 0; row <= rows; row++) slack[row] = 0.0;
    *most = 0.0;
    for (int64_t node = 0; node < flat->nodes; node++) {
        const int64_t start = flat->node_start[node], size = size_of(flat, node);
        bool any = false;
        for (int64_t x = 0; x < size && !any; x++) any = alive[start + x];
        if (!any) return false;
        for (int64_t use = flat->use_start[node]; use < flat->use_start[node + 1]; use++) {
            const double *amounts = flat->amounts + flat->use_amounts[use];
            double low = HUGE_COST, high = -HUGE_COST;
            for (int64_t x = 0; x < size; x++) {
                if (!alive[start + x]) continue;
                if (amounts[x] < low) low = amounts[x];
                if (amounts[x] > high) high = amounts[x];
            }
            least[use] = low;
            if (high - low > *most) *most = high - low;
            slack[flat->use_from[use]] += low;
            slack[flat->use_to[use]] -= low;
        }
    }
    double load = 0.0;
    for (int64_t row = 0; row < rows; row++) {
        load += slack[row];
        slack[row] = flat->capacity[row] - load;
    }
    return true;
}

int64_t squeeze(const Flat *flat, bool *alive, int64_t rows, double rounding, double *least,
                double *slack) {
    int64_t dropped = 0;
    for (bool again = true; again;) {
        double most, tightest = HUGE_COST;
        again = false;
        if (!lightest(flat, alive, least, slack, rows, &most)) return -1;
        for (int64_t row = 0; row < rows; row++)
            if (slack[row] < tightest) tightest = slack[row];
        if (tightest < -rounding) return -1;
        if (most <= tightest + rounding) return dropped;
        for (int64_t node = 0; node < flat->nodes; node++) {
            const int64_t start = flat->node_start[node], size = size_of(flat, node);
            for (int64_t use = flat->use_start[node]; use < flat->use_start[node + 1]; use++) {
                const double *amounts = flat->amounts + flat->use_amounts[use];
                double high = least[use], room = HUGE_COST;
                for (int64_t x = 0; x < size; x++)
                    if (alive[start + x] && amounts[x] > high) high = amounts[x];
                if (high - least[use] <= tightest + rounding) continue;
                for (int64_t row = flat->use_from[use]; row < flat->use_to[use]; row++)
                    if (slack[row] < room) room = slack[row];
                for (int64_t x = 0; x < size; x++) {
                    if (!alive[start + x] || amounts[x] - least[use] <= room + rounding) continue;
                    alive[start + x] = false;
                    dropped++;
                    again = true;
                }
            }
        }
    }
    return dropped;
}
