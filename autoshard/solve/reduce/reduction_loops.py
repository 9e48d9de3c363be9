"""Compiled loops of presolve: usages as boxes in time, memory rows that others cover.

Both read the *jumps* of a profile: at memory row r, the amount of group g (a node and one of its
usage vectors) changes by so much.
"""

from __future__ import annotations

from autoshard.solve.kernels import compiled

# What is left of an amount after subtracting what should be all of it, relatively.
RESIDUE = 1e-12


@compiled
def boxes(group, row, jump, held_row, held_amount, out_jump, out_row, out_amount):
    """Cut step functions of time into boxes, the last to begin being the first to end.

    Jumps are sorted by group, then row, and every group's sum to zero. Box k begins at jump
    out_jump[k] (its group and row) and ends before row out_row[k]. `held_*` is scratch as long as
    the longest group. Returns how many boxes there are; there are fewer than jumps.
    """
    count = 0
    depth = 0
    for k in range(group.size):
        if k == 0 or group[k] != group[k - 1]:
            depth = 0
        if jump[k] > 0.0:
            held_row[depth] = k
            held_amount[depth] = jump[k]
            depth += 1
            continue
        left = -jump[k]
        floor = RESIDUE * left
        while left > floor and depth > 0:
            top = held_amount[depth - 1]
            taken = top if top < left else left
            out_jump[count] = held_row[depth - 1]
            out_row[count] = row[k]
            out_amount[count] = taken
            count += 1
            left -= taken
            if top - taken <= RESIDUE * top:
                depth -= 1
            else:
                held_amount[depth - 1] = top - taken
    return count


@compiled
def covered_rows(begin, group, jump, base, window, net, touched, covered):
    """Mark rows whose every amount another row within `window` rows of them reaches too.

    The jumps that lead from row r - 1 to row r are begin[r] to begin[r + 1]. `net` (one per group)
    must be zero throughout, and is left so; `touched` is scratch as long as the jumps.
    """
    rows = base.size
    for side in range(2):
        for row in range(rows):
            if covered[row]:
                continue
            missing = 0
            count = 0
            other = row
            for _ in range(window):
                if side == 0:
                    other += 1
                    if other >= rows:
                        break
                    first, last = begin[other], begin[other + 1]
                else:
                    other -= 1
                    if other < 0:
                        break
                    first, last = begin[other + 1], begin[other + 2]
                for k in range(first, last):
                    g = group[k]
                    before = net[g]
                    after = before + jump[k] if side == 0 else before - jump[k]
                    net[g] = after
                    touched[count] = g
                    count += 1
                    if before < 0.0 and after >= 0.0:
                        missing -= 1
                    elif before >= 0.0 and after < 0.0:
                        missing += 1
                if missing == 0 and not covered[other] and base[other] >= base[row]:
                    covered[row] = True
                    break
            for k in range(count):
                net[touched[k]] = 0.0
