"""Choices without support: those that no choice of some neighbour can accompany.

Passes of messages find them (`autoshard.solve.kernels`), and then they are gone for good, whatever
anything costs. Messages that begin anew, from those of an earlier ascent, are told of them at once.
"""

from __future__ import annotations

import numpy as np

from autoshard.solve.dual import DualAscent
from autoshard.solve.kernels import PUSH, compiled

PASSES = 4
"""So many passes at a time: too few to move a price."""


def drop_unsupported(ascent: DualAscent) -> np.ndarray:
    """Take away the choices without support; returns those that are left, as a mask.

    Messages of the ascent stay what they were.
    """
    scratch = DualAscent(ascent.flat)
    scratch.alive = ascent.alive
    count = -1
    while (left := int(scratch.alive.sum())) != count:
        count = left
        scratch.passes = 0
        scratch.run(np.inf, np.inf, PASSES)
    return scratch.alive


def silence(ascent: DualAscent) -> None:
    """Let groups none of whose choices is left push what stands for infinity.

    What a pass leaves of their messages depends on which way it went.
    """
    flat = ascent.flat
    scratch = np.empty(flat.widest, dtype=np.bool_)
    for messages in (ascent.messages, ascent.best_messages):
        _silence(flat, ascent.alive, messages, scratch)


@compiled
def _silence(flat, alive, messages, counted):
    for e in range(flat.u.size):
        for side in range(2):
            node = flat.u[e] if side == 0 else flat.v[e]
            width = flat.rows[e] if side == 0 else flat.columns[e]
            at = flat.message_start[e] + (0 if side == 0 else flat.rows[e])
            group = flat.left_start[e] if side == 0 else flat.right_start[e]
            start = flat.node_start[node]
            for g in range(width):
                counted[g] = False
            for x in range(flat.node_start[node + 1] - start):
                if alive[start + x]:
                    counted[flat.groups[group + x]] = True
            for g in range(width):
                if not counted[g]:
                    messages[at + g] = -PUSH
