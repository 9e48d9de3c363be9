/* `autoshard.solve.flat.Flat` as C sees it: the same arrays in the same order, then two counts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const int64_t *node_start;
    const double *costs;
    const int64_t *u, *v, *rows, *columns;
    const int64_t *table_start, *left_start, *right_start, *message_start, *sparse_start, *pair_start;
    const double *tables;
    const int64_t *sparse_index;
    const double *sparse_value;
    const int64_t *pair_index, *groups, *near_start, *near_edge, *near;
    const int64_t *use_start, *use_from, *use_to, *use_amounts;
    const double *amounts, *capacity;
    int64_t nodes, edges;
} Flat;

/* An edge as one of its ends has it (`Flat.near`). */
typedef struct {
    int64_t other, edge, width, mine, theirs, group;
} Near;

/* The loops' infinity; what a group without choices pushes; and from where on a number stands for
   either (`autoshard.solve.kernels`). */
#define HUGE_COST 1e300
#define PUSH 1e290
#define GONE 1e280

static inline int64_t size_of(const Flat *flat, int64_t node) {
    return flat->node_start[node + 1] - flat->node_start[node];
}

static inline int64_t other_end(const Flat *flat, int64_t edge, int64_t node) {
    return flat->u[edge] == node ? flat->v[edge] : flat->u[edge];
}

/* Where the edges of a node begin; those of the node before it end there. */
static inline const Near *near_of(const Flat *flat, int64_t node) {
    return (const Near *)flat->near + flat->near_start[node];
}

static inline bool is_u(const Near *near) { return near->mine < near->theirs; }
