"""A leaf of a tree of splits: a set of plans, and the messages and prices that bound their cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import Flat
from autoshard.solve.kernels import GONE
from autoshard.solve.problem import Booleans, Floats, Integers
from autoshard.solve.support import silence

SOFTNESS, AGILITY = 1e-3, 0.05
"""Of the ascents (`DualAscent`)."""


@dataclass(slots=True, eq=False, order=False)
class Leaf:
    """Plans that take only choices that are `alive`, none cheaper than `bound`."""

    bound: float
    alive: Booleans
    rows: Integers
    prices: Floats
    messages: np.ndarray
    """Of 32 bits: a bound holds for any messages."""
    floor: Floats
    """What no plan of the leaf with a given choice can cost less than."""
    tried: float
    """The pairs of the last leaf around it that was not solved in its time; 0 once it is solved."""
    hopes: dict[int, float]
    """What every way to branch that is known is hoped to gain (`ways`); empty in a root."""

    @property
    def size(self) -> int:
        return self.alive.nbytes + self.messages.nbytes + self.floor.nbytes + self.prices.nbytes


def leaf_of(
    ascent: DualAscent,
    alive: Booleans,
    value: float,
    floor: Floats,
    tried: float,
    hopes: dict[int, float],
) -> Leaf:
    """The leaf of the choices alive, with the best prices and messages of an ascent."""
    rows = np.flatnonzero(ascent.best_prices)
    messages = np.where(np.abs(ascent.best_messages) < GONE, ascent.best_messages, 0.0)
    messages = messages.astype(np.float32)
    return Leaf(value, alive, rows, ascent.best_prices[rows], messages, floor, tried, hopes)


def ascent_within(flat: Flat, leaf: Leaf, alive: Booleans) -> DualAscent:
    """An ascent on some choices of a leaf, from where the leaf stands."""
    prices = np.zeros(flat.capacity.size)
    prices[leaf.rows] = leaf.prices
    return ascent_on(flat, alive, prices, leaf.messages.astype(np.float64))


def ascent_on(flat: Flat, alive: Booleans, prices: Floats, messages: Floats) -> DualAscent:
    """An ascent on some choices."""
    ascent = DualAscent(flat, softness=SOFTNESS, agility=AGILITY)
    ascent.alive[:] = alive
    ascent.begin_with(prices, messages)
    silence(ascent)
    ascent.take_up(np.flatnonzero(prices))
    return ascent
