"""Choices without support: those that no choice of some neighbour can accompany.

Passes of messages find them (`autoshard.solve.kernels`), and then they are gone for good, whatever
anything costs. Messages that begin anew, from those of an earlier ascent, are told of them at once.
"""

from __future__ import annotations

import numpy as np

from autoshard.solve import kernels as loops
from autoshard.solve.dual import DualAscent

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
        loops.silence(flat, ascent.alive, messages, scratch)
