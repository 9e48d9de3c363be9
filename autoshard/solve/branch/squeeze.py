"""Choices that exceed the memory limit even beside the least of all others (`squeeze.c`)."""

from __future__ import annotations

import numpy as np

from autoshard.native import FLAGS, FLOATS, NUMBER, STRUCT, WORD, function
from autoshard.solve.evaluate import LOAD_TOLERANCE
from autoshard.solve.flat import Flat
from autoshard.solve.problem import Booleans

_squeeze = function("squeeze", STRUCT, FLAGS, WORD, NUMBER, FLOATS, FLOATS, returns=WORD)


def squeeze(flat: Flat, alive: Booleans) -> bool:
    """Take away choices that fit beside nothing; False when no plan of those left fits.

    `alive` marks the choices of all nodes. Bytes count to within what the limit tolerates.
    """
    rows = flat.capacity.size
    rounding = LOAD_TOLERANCE * float(np.abs(flat.capacity).max(initial=0.0))
    least, slack = np.empty(flat.use_from.size), np.empty(rows + 1)
    return _squeeze(flat.struct, alive, rows, rounding, least, slack) >= 0
