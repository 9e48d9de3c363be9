"""Compiled loops over a `Flat` problem: messages, memory loads, prices, forest moves.

Messages. Edge e pushes M[g] to the choices of group g of one end and N[h] of the other; what is
left of it is  T[g, h] - M[g] - N[h], and a node holds  h[x] = priced cost[x] + sum_e
M_e[group_e(x)]. For every choice of messages

    bound = sum_i min h_i + sum_e min ( T - M - N ) - prices . capacity

is valid. A pass visits the nodes in order; each collects all that the edges behind it can give
(M[g] = min over h of T - N) and then hands shares of the result, group by group, to the edges ahead
of it. This is sequential tree-reweighted message passing (Kolmogorov,
https://doi.org/10.1109/TPAMI.2006.200) in the shares form of SRMP
(https://arxiv.org/abs/1309.5655), with groups in place of choices. A group without choices pushes
-PUSH, so that the other end no longer counts on it; a choice that thereby loses its support is gone
too, which makes the pairs arc consistent.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FAST = {"nnan", "nsz", "arcp", "contract", "reassoc"}
# The loops' infinity; what a group without choices pushes; and from where on a number stands for
# either. A push is so much smaller that a choice that is gone stays gone whatever is added to it.
HUGE, PUSH, GONE = 1e300, 1e290, 1e280
# No slices and no allocations below: they are most of the time it takes to compile a loop.
compiled = njit(  # pyright: ignore[reportCallIssue]
    cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, fastmath=FAST
)
inner = njit(  # pyright: ignore[reportCallIssue]
    cache=True,
    nogil=True,
    error_model="numpy",
    no_cfunc_wrapper=True,
    no_cpython_wrapper=True,
    fastmath=FAST,
)
# Part of the loop that calls it, to the last digit.
inlined = njit(inline="always")  # pyright: ignore[reportCallIssue]


@compiled
def priced_costs(flat, total, nodes, out):
    """out = costs + amounts times the prices of the rows each usage covers, at the given nodes.

    `total[t]` is the sum of the prices of the rows before t.
    """
    for position in range(nodes.size):
        node = nodes[position]
        start = flat.node_start[node]
        size = flat.node_start[node + 1] - start
        for x in range(start, start + size):
            out[x] = flat.costs[x]
        for use in range(flat.use_start[node], flat.use_start[node + 1]):
            price = total[flat.use_to[use]] - total[flat.use_from[use]]
            if price > 0.0:
                at = flat.use_amounts[use]
                for x in range(size):
                    out[start + x] += price * flat.amounts[at + x]


@inner
def collect(flat, e, to_u, messages, best):
    """best[g] = the minimum over the other side of T - its messages."""
    rows, columns = flat.rows[e], flat.columns[e]
    begin = flat.sparse_start[e]
    pairs = flat.pair_start[e]
    at_rows = flat.message_start[e]
    at_columns = at_rows + rows
    if not to_u:
        for h in range(columns):
            best[h] = HUGE
    if pairs >= 0:
        for g in range(rows):
            first = flat.pair_index[pairs + 2 * g]
            last = flat.pair_index[pairs + 2 * g + 1]
            if to_u:
                best[g] = -max(messages[at_columns + first], messages[at_columns + last])
            else:
                value = -messages[at_rows + g]
                if value < best[first]:
                    best[first] = value
                if value < best[last]:
                    best[last] = value
        return
    for g in range(rows):
        shift = messages[at_rows + g]
        least = HUGE
        if begin >= 0:
            first = begin + flat.sparse_index[begin + g]
            last = begin + flat.sparse_index[begin + g + 1]
            if to_u:
                for k in range(first, last):
                    value = flat.sparse_value[k] - messages[at_columns + flat.sparse_index[k]]
                    if value < least:
                        least = value
            else:
                for k in range(first, last):
                    h = flat.sparse_index[k]
                    value = flat.sparse_value[k] - shift
                    if value < best[h]:
                        best[h] = value
        else:
            row = flat.table_start[e] + g * columns
            if to_u:
                for h in range(columns):
                    value = flat.tables[row + h] - messages[at_columns + h]
                    if value < least:
                        least = value
            else:
                for h in range(columns):
                    value = flat.tables[row + h] - shift
                    if value < best[h]:
                        best[h] = value
        if to_u:
            best[g] = least


@inlined
def expect_load(flat, node, size, spread, held, best, expected):
    """Add to `expected` the jumps of a node's mean load under the marginals of what it holds."""
    least = HUGE
    for x in range(size):
        if held[x] < least:
            least = held[x]
    total = 0.0
    for x in range(size):
        gap = (held[x] - least) / spread
        best[x] = np.exp(-gap) if gap < 40.0 else 0.0
        total += best[x]
    for use in range(flat.use_start[node], flat.use_start[node + 1]):
        at = flat.use_amounts[use]
        mean = 0.0
        for x in range(size):
            mean += best[x] * flat.amounts[at + x]
        mean /= total
        expected[flat.use_from[use]] += mean
        expected[flat.use_to[use]] -= mean


@inlined
def hand_on(flat, e, to_u, size, share, held, messages, best):
    """Hand a share of what a node holds, group by group, to an edge."""
    at = flat.message_start[e] + (0 if to_u else flat.rows[e])
    width = flat.rows[e] if to_u else flat.columns[e]
    group = flat.left_start[e] if to_u else flat.right_start[e]
    for g in range(width):
        best[g] = HUGE
    for x in range(size):
        g = flat.groups[group + x]
        if held[x] < best[g]:
            best[g] = held[x]
    for g in range(width):
        if best[g] < GONE:
            best[g] *= share
            messages[at + g] -= best[g]
        else:
            best[g] = 0.0
            messages[at + g] = -PUSH
    for x in range(size):
        held[x] -= best[flat.groups[group + x]]


@compiled
def sweep(flat, theta, alive, messages, forward, spread, expected, held, best):
    """One pass over all nodes; returns the sum of the node minima after it.

    `expected` (one more than the rows) receives the jumps of the expected memory load under the
    node marginals at temperature `spread`. `alive` marks the choices that are left; the pass takes
    away those that lost all support. `held` and `best` are scratch, as long as the longest
    node or table side.
    """
    count = flat.node_start.size - 1
    for row in range(expected.size):
        expected[row] = 0.0
    bound = 0.0
    for position in range(count):
        node = position if forward else count - 1 - position
        start = flat.node_start[node]
        size = flat.node_start[node + 1] - start
        for x in range(size):
            held[x] = theta[start + x] if alive[start + x] else HUGE
        ahead = 0
        behind = 0
        for k in range(flat.near_start[node], flat.near_start[node + 1]):
            e = flat.near_edge[k]
            to_u = flat.u[e] == node
            other = flat.v[e] if to_u else flat.u[e]
            if (other > node) == forward:
                ahead += 1
            at = flat.message_start[e] + (0 if to_u else flat.rows[e])
            group = flat.left_start[e] if to_u else flat.right_start[e]
            # An edge ahead has given all it has in the pass before, the other way.
            if (other > node) != forward:
                behind += 1
                collect(flat, e, to_u, messages, best)
                for g in range(flat.rows[e] if to_u else flat.columns[e]):
                    messages[at + g] = best[g]
            for x in range(size):
                held[x] += messages[at + flat.groups[group + x]]
        for x in range(size):
            if held[x] > GONE:
                alive[start + x] = False
                held[x] = HUGE
        if flat.use_start[node] < flat.use_start[node + 1]:
            expect_load(flat, node, size, spread, held, best, expected)
        parts = ahead if ahead > behind else behind
        for k in range(flat.near_start[node], flat.near_start[node + 1]):
            e = flat.near_edge[k]
            to_u = flat.u[e] == node
            other = flat.v[e] if to_u else flat.u[e]
            if (other > node) != forward:
                continue
            hand_on(flat, e, to_u, size, 1.0 / parts, held, messages, best)
            parts -= 1
        least = HUGE
        for x in range(size):
            if held[x] < least:
                least = held[x]
        bound += least
    return bound


@compiled
def appraise(flat, theta, alive, messages, held, extra, best):
    """The dual value, what the nodes hold, and by how much each choice must exceed the value.

    Returns sum_i min h_i + sum_e min (T - M - N), valid for any messages. Sets held = h and
    extra[x] = h[x] - min h + sum over edges of (the edge's minimum in the group of x - its
    minimum).
    """
    for k in range(theta.size):
        held[k] = theta[k] if alive[k] else HUGE
        extra[k] = held[k]
    total = 0.0
    for e in range(flat.u.size):
        for side in range(2):
            to_u = side == 0
            collect(flat, e, to_u, messages, best)
            node = flat.u[e] if to_u else flat.v[e]
            width = flat.rows[e] if to_u else flat.columns[e]
            at = flat.message_start[e] + (0 if to_u else flat.rows[e])
            group = flat.left_start[e] if to_u else flat.right_start[e]
            least = HUGE
            for g in range(width):
                if best[g] - messages[at + g] < least:
                    least = best[g] - messages[at + g]
            if to_u:
                total += least
            start = flat.node_start[node]
            for x in range(flat.node_start[node + 1] - start):
                g = flat.groups[group + x]
                held[start + x] += messages[at + g]
                extra[start + x] += best[g] - least
    for node in range(flat.node_start.size - 1):
        least = HUGE
        for k in range(flat.node_start[node], flat.node_start[node + 1]):
            if held[k] < least:
                least = held[k]
        total += least
        for k in range(flat.node_start[node], flat.node_start[node + 1]):
            extra[k] -= least
    return total


@compiled
def plan_change(flat, tables, nodes, old, new, jumps):
    """What it costs to go from plan `old` to `new`, which differ at some of the given nodes.

    `jumps` (one more than the rows) receives the jumps of the change of the memory load.
    """
    for row in range(jumps.size):
        jumps[row] = 0.0
    total = 0.0
    for position in range(nodes.size):
        node = nodes[position]
        was, now = old[node], new[node]
        if was == now:
            continue
        total += flat.costs[flat.node_start[node] + now] - flat.costs[flat.node_start[node] + was]
        for use in range(flat.use_start[node], flat.use_start[node + 1]):
            at = flat.use_amounts[use]
            more = flat.amounts[at + now] - flat.amounts[at + was]
            jumps[flat.use_from[use]] += more
            jumps[flat.use_to[use]] -= more
        for k in range(flat.near_start[node], flat.near_start[node + 1]):
            e = flat.near_edge[k]
            u, v = flat.u[e], flat.v[e]
            if node == v and old[u] != new[u]:
                continue
            columns = flat.columns[e]
            left, right = flat.left_start[e], flat.right_start[e]
            at = flat.table_start[e]
            total += tables[at + flat.groups[left + new[u]] * columns + flat.groups[right + new[v]]]
            total -= tables[at + flat.groups[left + old[u]] * columns + flat.groups[right + old[v]]]
    return total


@compiled
def grow_region(flat, turns, size, mark, order):
    """The first `size` nodes met by breadth-first search from turns[0]; returns how many there are.

    `turns` are random numbers that decide where each node's neighbours are begun; `mark` must be
    False throughout, and is left so.
    """
    order[0] = turns[0]
    mark[turns[0]] = True
    head = 0
    tail = 1
    while head < tail and tail < size:
        node = order[head]
        first = flat.near_start[node]
        width = flat.near_start[node + 1] - first
        for j in range(width):
            e = flat.near_edge[first + (j + turns[head]) % width]
            other = flat.v[e] if flat.u[e] == node else flat.u[e]
            if not mark[other] and tail < size:
                mark[other] = True
                order[tail] = other
                tail += 1
        head += 1
    for position in range(tail):
        mark[order[position]] = False
    return tail
