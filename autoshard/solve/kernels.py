"""Compiled loops over a `Flat` problem: messages, memory loads, prices, forest moves.

Messages. Edge e pushes M[g] to the choices of group g of one end and N[h] of the other; what is left
of it is  T[g, h] - M[g] - N[h], and a node holds  h[x] = priced cost[x] + sum_e M_e[group_e(x)].
For every choice of messages

    bound = sum_i min h_i + sum_e min ( T - M - N ) - prices . capacity

is valid. A pass visits the nodes in order; each collects all that its edges can give (M[g] = min over
h of T - N, or a soft minimum at temperature > 0) and then hands shares of the result, group by group,
to the edges ahead of it. This is sequential tree-reweighted message passing (Kolmogorov,
https://doi.org/10.1109/TPAMI.2006.200) in the shares form of SRMP (https://arxiv.org/abs/1309.5655),
with groups in place of choices.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from autoshard.solve.flat import Flat

FAST = {"nnan", "nsz", "arcp", "contract", "reassoc"}
HUGE = 1e300


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def priced_costs(flat: Flat, prices: np.ndarray, out: np.ndarray) -> None:
    """out = costs + amounts times the prices of the rows each usage covers."""
    total = np.zeros(prices.size + 1)
    for row in range(prices.size):
        total[row + 1] = total[row] + prices[row]
    out[:] = flat.costs
    for node in range(flat.node_start.size - 1):
        start = flat.node_start[node]
        size = flat.node_start[node + 1] - start
        for use in range(flat.use_start[node], flat.use_start[node + 1]):
            price = total[flat.use_to[use]] - total[flat.use_from[use]]
            if price > 0.0:
                at = flat.use_amounts[use]
                for x in range(size):
                    out[start + x] += price * flat.amounts[at + x]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def collect(flat, e, to_u, messages, temperature, best, weight):
    """best[g] = (soft) minimum over the other side of T - its messages."""
    rows, columns = flat.rows[e], flat.columns[e]
    table = flat.tables[flat.table_start[e] : flat.table_start[e] + rows * columns]
    at = flat.message_start[e]
    to_rows = messages[at : at + rows]
    to_columns = messages[at + rows : at + rows + columns]
    inverse = 0.0
    if temperature > 0.0:
        inverse = 1.0 / (64.0 * temperature)
    if to_u:
        for g in range(rows):
            row = table[g * columns : (g + 1) * columns]
            least = HUGE
            for h in range(columns):
                value = row[h] - to_columns[h]
                if value < least:
                    least = value
            if temperature > 0.0:
                total = 0.0
                for h in range(columns):
                    q = 1.0 - (row[h] - to_columns[h] - least) * inverse
                    if q < 0.0:
                        q = 0.0
                    q = q * q
                    q = q * q
                    q = q * q
                    q = q * q
                    q = q * q
                    total += q * q
                least -= temperature * np.log(total)
            best[g] = least
    else:
        for h in range(columns):
            best[h] = HUGE
        for g in range(rows):
            row = table[g * columns : (g + 1) * columns]
            shift = to_rows[g]
            for h in range(columns):
                value = row[h] - shift
                if value < best[h]:
                    best[h] = value
        if temperature > 0.0:
            for h in range(columns):
                weight[h] = 0.0
            for g in range(rows):
                row = table[g * columns : (g + 1) * columns]
                shift = to_rows[g]
                for h in range(columns):
                    q = 1.0 - (row[h] - shift - best[h]) * inverse
                    if q < 0.0:
                        q = 0.0
                    q = q * q
                    q = q * q
                    q = q * q
                    q = q * q
                    q = q * q
                    weight[h] += q * q
            for h in range(columns):
                best[h] -= temperature * np.log(weight[h])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def sweep(flat, theta, messages, forward, temperature, spread, expected):
    """One pass over all nodes; returns the sum of the node minima after it.

    `expected` (one more than the rows) receives the jumps of the expected memory load under the
    node marginals at temperature `spread`.
    """
    count = flat.node_start.size - 1
    widest = 1
    for node in range(count):
        widest = max(widest, flat.node_start[node + 1] - flat.node_start[node])
    for e in range(flat.u.size):
        widest = max(widest, flat.rows[e], flat.columns[e])
    held = np.empty(widest)
    best = np.empty(widest)
    weight = np.empty(widest)
    expected[:] = 0.0
    bound = 0.0
    for position in range(count):
        node = position if forward else count - 1 - position
        start = flat.node_start[node]
        size = flat.node_start[node + 1] - start
        for x in range(size):
            held[x] = theta[start + x]
        ahead = 0
        behind = 0
        for k in range(flat.near_start[node], flat.near_start[node + 1]):
            e = flat.near_edge[k]
            to_u = flat.u[e] == node
            other = flat.v[e] if to_u else flat.u[e]
            if (other > node) == forward:
                ahead += 1
            else:
                behind += 1
            collect(flat, e, to_u, messages, temperature, best, weight)
            at = flat.message_start[e] + (0 if to_u else flat.rows[e])
            width = flat.rows[e] if to_u else flat.columns[e]
            group = flat.left_start[e] if to_u else flat.right_start[e]
            for g in range(width):
                messages[at + g] = best[g]
            for x in range(size):
                held[x] += best[flat.groups[group + x]]
        least = HUGE
        for x in range(size):
            if held[x] < least:
                least = held[x]
        if flat.use_start[node] < flat.use_start[node + 1]:
            total = 0.0
            for x in range(size):
                gap = (held[x] - least) / spread
                weight[x] = np.exp(-gap) if gap < 40.0 else 0.0
                total += weight[x]
            for use in range(flat.use_start[node], flat.use_start[node + 1]):
                at = flat.use_amounts[use]
                mean = 0.0
                for x in range(size):
                    mean += weight[x] * flat.amounts[at + x]
                mean /= total
                expected[flat.use_from[use]] += mean
                expected[flat.use_to[use]] -= mean
        parts = max(ahead, behind)
        for k in range(flat.near_start[node], flat.near_start[node + 1]):
            e = flat.near_edge[k]
            to_u = flat.u[e] == node
            other = flat.v[e] if to_u else flat.u[e]
            if (other > node) != forward:
                continue
            at = flat.message_start[e] + (0 if to_u else flat.rows[e])
            width = flat.rows[e] if to_u else flat.columns[e]
            group = flat.left_start[e] if to_u else flat.right_start[e]
            for g in range(width):
                best[g] = HUGE
            for x in range(size):
                g = flat.groups[group + x]
                if held[x] < best[g]:
                    best[g] = held[x]
            if temperature > 0.0:
                for g in range(width):
                    weight[g] = 0.0
                for x in range(size):
                    g = flat.groups[group + x]
                    gap = (held[x] - best[g]) / temperature
                    if gap < 40.0:
                        weight[g] += np.exp(-gap)
                for g in range(width):
                    if weight[g] > 0.0:
                        best[g] -= temperature * np.log(weight[g])
            share = 1.0 / parts
            parts -= 1
            for g in range(width):
                best[g] = best[g] * share if best[g] < HUGE else 0.0
                messages[at + g] -= best[g]
            for x in range(size):
                held[x] -= best[flat.groups[group + x]]
        least = HUGE
        for x in range(size):
            if held[x] < least:
                least = held[x]
        bound += least
    return bound


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def dual_value(flat, theta, messages):
    """sum_i min h_i + sum_e min (T - M - N): valid for any messages."""
    count = flat.node_start.size - 1
    held = theta.copy()
    total = 0.0
    for e in range(flat.u.size):
        rows, columns = flat.rows[e], flat.columns[e]
        at = flat.message_start[e]
        least = HUGE
        for g in range(rows):
            where = flat.table_start[e] + g * columns
            shift = messages[at + g]
            for h in range(columns):
                value = flat.tables[where + h] - shift - messages[at + rows + h]
                if value < least:
                    least = value
        total += least
        start = flat.node_start[flat.u[e]]
        for x in range(flat.node_start[flat.u[e] + 1] - start):
            held[start + x] += messages[at + flat.groups[flat.left_start[e] + x]]
        start = flat.node_start[flat.v[e]]
        for x in range(flat.node_start[flat.v[e] + 1] - start):
            held[start + x] += messages[at + rows + flat.groups[flat.right_start[e] + x]]
    for node in range(count):
        least = HUGE
        for k in range(flat.node_start[node], flat.node_start[node + 1]):
            if held[k] < least:
                least = held[k]
        total += least
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def min_marginals(flat, theta, messages, out):
    """For each choice, by how much any plan that takes it must exceed the dual value.

    out[x] = h[x] - min h + sum over edges of (the edge's minimum in the group of x - its minimum).
    """
    held = theta.copy()
    out[:] = theta
    widest = 1
    for e in range(flat.u.size):
        widest = max(widest, flat.rows[e], flat.columns[e])
    best = np.empty(widest)
    weight = np.empty(widest)
    for e in range(flat.u.size):
        for to_u in (True, False):
            collect(flat, e, to_u, messages, 0.0, best, weight)
            node = flat.u[e] if to_u else flat.v[e]
            width = flat.rows[e] if to_u else flat.columns[e]
            at = flat.message_start[e] + (0 if to_u else flat.rows[e])
            group = flat.left_start[e] if to_u else flat.right_start[e]
            least = HUGE
            for g in range(width):
                if best[g] - messages[at + g] < least:
                    least = best[g] - messages[at + g]
            start = flat.node_start[node]
            for x in range(flat.node_start[node + 1] - start):
                g = flat.groups[group + x]
                held[start + x] += messages[at + g]
                out[start + x] += best[g] - least
    for node in range(flat.node_start.size - 1):
        least = HUGE
        for k in range(flat.node_start[node], flat.node_start[node + 1]):
            if held[k] < least:
                least = held[k]
        for k in range(flat.node_start[node], flat.node_start[node + 1]):
            out[k] -= least


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def loads(flat, picked, out):
    """Bytes at every row under a plan."""
    jumps = np.zeros(flat.capacity.size + 1)
    for node in range(picked.size):
        for use in range(flat.use_start[node], flat.use_start[node + 1]):
            amount = flat.amounts[flat.use_amounts[use] + picked[node]]
            jumps[flat.use_from[use]] += amount
            jumps[flat.use_to[use]] -= amount
    total = 0.0
    for row in range(out.size):
        total += jumps[row]
        out[row] = total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def plan_cost(flat, costs, tables, picked):
    """The cost of a plan under given unary costs and tables."""
    total = 0.0
    for node in range(picked.size):
        total += costs[flat.node_start[node] + picked[node]]
    for e in range(flat.u.size):
        g = flat.groups[flat.left_start[e] + picked[flat.u[e]]]
        h = flat.groups[flat.right_start[e] + picked[flat.v[e]]]
        total += tables[flat.table_start[e] + g * flat.columns[e] + h]
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def held_costs(flat, theta, messages):
    """Turn priced costs into what the nodes hold, in place."""
    for e in range(flat.u.size):
        at = flat.message_start[e]
        start = flat.node_start[flat.u[e]]
        for x in range(flat.node_start[flat.u[e] + 1] - start):
            theta[start + x] += messages[at + flat.groups[flat.left_start[e] + x]]
        at += flat.rows[e]
        start = flat.node_start[flat.v[e]]
        for x in range(flat.node_start[flat.v[e] + 1] - start):
            theta[start + x] += messages[at + flat.groups[flat.right_start[e] + x]]
