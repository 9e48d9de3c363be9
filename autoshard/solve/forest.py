"""Moves that re-decide a whole induced forest exactly, the rest of the plan held fixed.

Take nodes in a random order and keep each one that closes no cycle with those kept before. On the
kept nodes the problem is a forest, and dynamic programming over it finds the best joint choice given
the neighbours outside: leaf to root, message[h] = min_g ( min_{x in g} H[x] + T[g, h] ), then root to
leaf. Often more than half of all nodes are re-decided in one move.

Memory enters through prices per row. A move that breaks a limit is tried again on the same forest
with dearer rows; one that keeps all limits but costs more, with cheaper rows. A plan is accepted
when its penalised cost (cost + `overload_price` * bytes over the limits) does not grow.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from autoshard.solve.kernels import FAST, HUGE, loads, plan_cost, priced_costs


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def _root(parent, node):
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def choose_forest(flat, order, inside, parent):
    """Mark in `inside` the nodes of `order` that close no cycle; returns how many."""
    count = 0
    inside[:] = False
    for node in order:
        if flat.node_start[node + 1] - flat.node_start[node] == 1:
            continue
        fits = True
        first = flat.near_start[node]
        last = flat.near_start[node + 1]
        for k in range(first, last):
            e = flat.near_edge[k]
            other = flat.v[e] if flat.u[e] == node else flat.u[e]
            if not inside[other]:
                continue
            root = _root(parent, other)
            for j in range(first, k):
                f = flat.near_edge[j]
                another = flat.v[f] if flat.u[f] == node else flat.u[f]
                if inside[another] and _root(parent, another) == root:
                    fits = False
                    break
            if not fits:
                break
        if not fits:
            continue
        parent[node] = node
        for k in range(first, last):
            e = flat.near_edge[k]
            other = flat.v[e] if flat.u[e] == node else flat.u[e]
            if inside[other]:
                parent[_root(parent, other)] = node
        inside[node] = True
        count += 1
    return count


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def solve_forest(flat, tables, theta, inside, order, picked, held, up_edge, queue, best, out):
    """out = the cheapest plan that differs from `picked` inside the forest only."""
    out[:] = picked
    tail = 0
    for node in order:
        if inside[node]:
            up_edge[node] = -2
    for root in order:
        if not inside[root] or up_edge[root] != -2:
            continue
        head = tail
        queue[tail] = root
        tail += 1
        up_edge[root] = -1
        while head < tail:
            node = queue[head]
            head += 1
            start = flat.node_start[node]
            size = flat.node_start[node + 1] - start
            for x in range(start, start + size):
                held[x] = theta[x]
            for k in range(flat.near_start[node], flat.near_start[node + 1]):
                e = flat.near_edge[k]
                to_u = flat.u[e] == node
                other = flat.v[e] if to_u else flat.u[e]
                if inside[other]:
                    if up_edge[other] == -2:
                        up_edge[other] = e
                        queue[tail] = other
                        tail += 1
                    continue
                columns = flat.columns[e]
                where = flat.table_start[e]
                if to_u:
                    group = flat.left_start[e]
                    h = flat.groups[flat.right_start[e] + picked[other]]
                    for x in range(size):
                        held[start + x] += tables[where + flat.groups[group + x] * columns + h]
                else:
                    group = flat.right_start[e]
                    where += flat.groups[flat.left_start[e] + picked[other]] * columns
                    for x in range(size):
                        held[start + x] += tables[where + flat.groups[group + x]]
    for position in range(tail - 1, -1, -1):
        node = queue[position]
        e = up_edge[node]
        if e < 0:
            continue
        start = flat.node_start[node]
        size = flat.node_start[node + 1] - start
        rows, columns = flat.rows[e], flat.columns[e]
        where = flat.table_start[e]
        if flat.u[e] == node:
            for g in range(rows):
                best[g] = HUGE
            group = flat.left_start[e]
            for x in range(size):
                g = flat.groups[group + x]
                best[g] = min(best[g], held[start + x])
            message = best[rows : rows + columns]
            message[:] = HUGE
            for g in range(rows):
                base = best[g]
                if base < HUGE:
                    row = tables[where + g * columns : where + (g + 1) * columns]
                    for h in range(columns):
                        value = base + row[h]
                        if value < message[h]:
                            message[h] = value
            up = flat.v[e]
            group = flat.right_start[e]
        else:
            for h in range(columns):
                best[h] = HUGE
            group = flat.right_start[e]
            for x in range(size):
                h = flat.groups[group + x]
                best[h] = min(best[h], held[start + x])
            message = best[columns : rows + columns]
            for g in range(rows):
                row = tables[where + g * columns : where + (g + 1) * columns]
                least = HUGE
                for h in range(columns):
                    value = best[h] + row[h]
                    if value < least:
                        least = value
                message[g] = least
            up = flat.u[e]
            group = flat.left_start[e]
        start = flat.node_start[up]
        for x in range(flat.node_start[up + 1] - start):
            held[start + x] += message[flat.groups[group + x]]
    for position in range(tail):
        node = queue[position]
        start = flat.node_start[node]
        size = flat.node_start[node + 1] - start
        e = up_edge[node]
        least = HUGE
        choice = 0
        if e < 0:
            for x in range(size):
                if held[start + x] < least:
                    least = held[start + x]
                    choice = x
        elif flat.u[e] == node:
            columns = flat.columns[e]
            group = flat.left_start[e]
            where = flat.table_start[e] + flat.groups[flat.right_start[e] + out[flat.v[e]]]
            for x in range(size):
                value = held[start + x] + tables[where + flat.groups[group + x] * columns]
                if value < least:
                    least = value
                    choice = x
        else:
            columns = flat.columns[e]
            group = flat.right_start[e]
            where = (
                flat.table_start[e]
                + flat.groups[flat.left_start[e] + out[flat.u[e]]] * columns
            )
            for x in range(size):
                value = held[start + x] + tables[where + flat.groups[group + x]]
                if value < least:
                    least = value
                    choice = x
        out[node] = choice


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def overload(load, capacity):
    """Bytes over the limits, summed over the rows."""
    total = 0.0
    for row in range(load.size):
        if load[row] > capacity[row]:
            total += load[row] - capacity[row]
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def grow_order(flat, seed, size, order, mark):
    """The first nodes met by breadth-first search from a node, in random order; returns how many."""
    mark[:] = False
    order[0] = seed
    mark[seed] = True
    head = 0
    tail = 1
    while head < tail and tail < size:
        node = order[head]
        head += 1
        first = flat.near_start[node]
        width = flat.near_start[node + 1] - first
        turn = np.random.randint(0, max(width, 1))
        for j in range(width):
            e = flat.near_edge[first + (j + turn) % width]
            other = flat.v[e] if flat.u[e] == node else flat.u[e]
            if not mark[other] and tail < size:
                mark[other] = True
                order[tail] = other
                tail += 1
    for k in range(tail - 1, 0, -1):
        j = np.random.randint(0, k + 1)
        order[k], order[j] = order[j], order[k]
    return tail


@njit(cache=True, nogil=True, error_model="numpy")
def improve(
    flat,
    tables,
    base_prices,
    picked,
    moves,
    tries,
    local_size,
    jitter,
    seed,
    overload_price,
    price_step,
):
    """Make `moves` forest moves on `picked` in place; returns (cost, bytes over the limits).

    `local_size` bounds the region of a move (0: whole problem); `jitter` is the relative random
    change of the prices of a move; `price_step` what is added to the price of a row that is over.
    """
    np.random.seed(seed)
    count = flat.node_start.size - 1
    row_count = flat.capacity.size
    widest = 1
    for e in range(flat.u.size):
        widest = max(widest, flat.rows[e] + flat.columns[e])
    theta = np.empty(flat.costs.size)
    held = np.empty(flat.costs.size)
    best = np.empty(widest)
    inside = np.zeros(count, dtype=np.bool_)
    mark = np.zeros(count, dtype=np.bool_)
    parent = np.zeros(count, dtype=np.int64)
    up_edge = np.zeros(count, dtype=np.int64)
    queue = np.zeros(count, dtype=np.int64)
    order = np.zeros(count, dtype=np.int64)
    out = np.empty_like(picked)
    load = np.zeros(row_count)
    trial_load = np.zeros(row_count)
    prices = np.zeros(row_count)
    loads(flat, picked, load)
    cost = plan_cost(flat, flat.costs, tables, picked)
    excess = overload(load, flat.capacity)
    for _ in range(moves):
        size = count if local_size == 0 else min(count, local_size)
        seed_node = np.random.randint(0, count)
        if size == count:
            for k in range(count):
                order[k] = k
            for k in range(count - 1, 0, -1):
                j = np.random.randint(0, k + 1)
                order[k], order[j] = order[j], order[k]
            got = count
        else:
            got = grow_order(flat, seed_node, size, order, mark)
        if choose_forest(flat, order[:got], inside, parent) == 0:
            continue
        factor = np.exp(jitter * np.random.normal())
        low, high = 0.0, -1.0
        for row in range(row_count):
            prices[row] = base_prices[row]
        for _attempt in range(tries):
            priced = np.empty(row_count)
            for row in range(row_count):
                priced[row] = prices[row] * factor
            priced_costs(flat, priced, theta)
            solve_forest(
                flat, tables, theta, inside, order[:got], picked, held, up_edge, queue, best, out
            )
            loads(flat, out, trial_load)
            new_cost = plan_cost(flat, flat.costs, tables, out)
            new_excess = overload(trial_load, flat.capacity)
            if new_cost + overload_price * new_excess <= cost + overload_price * excess:
                picked[:] = out
                load[:] = trial_load
                cost = new_cost
                excess = new_excess
                break
            if row_count == 0:
                break
            if new_excess > excess:
                low = factor
                for row in range(row_count):
                    if trial_load[row] > flat.capacity[row]:
                        prices[row] = prices[row] * 1.5 + price_step
                factor = factor * 1.5 if high < 0.0 else 0.5 * (low + high)
            else:
                high = factor
                factor = 0.5 * (low + high)
    return cost, excess
