"""Moves that re-decide a whole induced forest exactly, given the rest of the plan.

Take nodes in a random order and keep each one that closes no cycle with those kept before. On the
kept nodes the problem is a forest, and dynamic programming over it finds the best joint choice
given the neighbours outside: leaf to root, message[h] = min_g ( min_{x in g} H[x] + T[g, h] ), then
root to leaf. Often more than half of all nodes are re-decided in one move. A neighbour outside is
either held at its choice, or open: then the dual's message stands for the best it will do later.

`picked` is only read. `tables` are the tables with a price in place of +inf, `conflict_cost`.
"""

from __future__ import annotations

from autoshard.solve.kernels import HUGE, compiled, inlined, inner


@inner
def _root(parent, node):
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@compiled
def choose_forest(flat, order, inside, parent):
    """Mark in `inside` the nodes of `order` that close no cycle; returns how many."""
    count = 0
    for node in range(inside.size):
        inside[node] = False
    for position in range(order.size):
        node = order[position]
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


@inlined
def root_trees(
    flat, tables, theta, messages, open_nodes, inside, order, picked, held, up_edge, queue
):
    """List the forest's nodes in `queue`, each after the one that its `up_edge` leads to.

    `held` becomes what their choices cost beside the neighbours outside. Returns how many nodes
    there are.
    """
    tail = 0
    for position in range(order.size):
        node = order[position]
        if inside[node]:
            up_edge[node] = -2
    for position in range(order.size):
        root = order[position]
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
                if open_nodes[other]:
                    at = flat.message_start[e] + (0 if to_u else flat.rows[e])
                    group = flat.left_start[e] if to_u else flat.right_start[e]
                    for x in range(size):
                        held[start + x] += messages[at + flat.groups[group + x]]
                elif to_u:
                    group = flat.left_start[e]
                    h = flat.groups[flat.right_start[e] + picked[other]]
                    for x in range(size):
                        held[start + x] += tables[where + flat.groups[group + x] * columns + h]
                else:
                    group = flat.right_start[e]
                    where += flat.groups[flat.left_start[e] + picked[other]] * columns
                    for x in range(size):
                        held[start + x] += tables[where + flat.groups[group + x]]
    return tail


@inlined
def send_up(flat, tables, conflict_cost, tail, up_edge, queue, best, held):
    """From the leaves to the roots: add to `held` the best that is below each choice."""
    for position in range(tail - 1, -1, -1):
        node = queue[position]
        e = up_edge[node]
        if e < 0:
            continue
        start = flat.node_start[node]
        size = flat.node_start[node + 1] - start
        rows, columns = flat.rows[e], flat.columns[e]
        where = flat.table_start[e]
        begin = flat.sparse_start[e]
        from_u = flat.u[e] == node
        here = flat.left_start[e] if from_u else flat.right_start[e]
        there = flat.right_start[e] if from_u else flat.left_start[e]
        up = flat.v[e] if from_u else flat.u[e]
        # best[:rows] is about rows, best[rows:] about columns: one is read, the other made.
        source = 0 if from_u else rows
        target = rows if from_u else 0
        for k in range(rows + columns):
            best[k] = HUGE
        lowest = HUGE
        for x in range(size):
            g = source + flat.groups[here + x]
            value = held[start + x]
            if value < best[g]:
                best[g] = value
            if value < lowest:
                lowest = value
        if begin >= 0:
            # A pair that is not stored is forbidden: a conflict, at its price.
            for k in range(columns if from_u else rows):
                best[target + k] = lowest + conflict_cost
        for g in range(rows):
            base = best[g]
            if begin >= 0:
                for k in range(
                    begin + flat.sparse_index[begin + g], begin + flat.sparse_index[begin + g + 1]
                ):
                    h = rows + flat.sparse_index[k]
                    if from_u:
                        best[h] = min(best[h], base + flat.sparse_value[k])
                    else:
                        best[g] = min(best[g], best[h] + flat.sparse_value[k])
            elif from_u:
                for h in range(columns):
                    value = base + tables[where + g * columns + h]
                    if value < best[rows + h]:
                        best[rows + h] = value
            else:
                least = HUGE
                for h in range(columns):
                    value = best[rows + h] + tables[where + g * columns + h]
                    if value < least:
                        least = value
                best[g] = least
        start = flat.node_start[up]
        for x in range(flat.node_start[up + 1] - start):
            held[start + x] += best[target + flat.groups[there + x]]


@inlined
def choose_down(flat, tables, held, tail, up_edge, queue, out):
    """From the roots to the leaves: the best choice of each node, given the one above."""
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
            where = flat.table_start[e] + flat.groups[flat.left_start[e] + out[flat.u[e]]] * columns
            for x in range(size):
                value = held[start + x] + tables[where + flat.groups[group + x]]
                if value < least:
                    least = value
                    choice = x
        out[node] = choice


@compiled
def solve_forest(
    flat,
    tables,
    conflict_cost,
    theta,
    messages,
    open_nodes,
    inside,
    order,
    picked,
    held,
    up_edge,
    queue,
    best,
    out,
):
    """out = the cheapest plan that differs from `picked` inside the forest only.

    Neighbours marked in `open_nodes` are not decided yet: they speak through their messages.
    """
    for node in range(out.size):
        out[node] = picked[node]
    tail = root_trees(
        flat, tables, theta, messages, open_nodes, inside, order, picked, held, up_edge, queue
    )
    send_up(flat, tables, conflict_cost, tail, up_edge, queue, best, held)
    choose_down(flat, tables, held, tail, up_edge, queue, out)
