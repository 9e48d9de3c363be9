"""What a kernel computes and moves, as records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from autoshard.program.kernels.ring import Ring

SIDES = (128, 256)
"""Rows and columns of the matrix units that there are."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What is computed.

    Attributes:
      products: FLOP of the matrix units.
      elementwise: FLOP of the elementwise units.
      exponentials: transcendental functions, as so many exponentials.
      filled: FLOP of the matrix units where sides of products are filled up to multiples of each
        of `SIDES`; nothing where no sides are known.
    """

    products: float = 0.0
    elementwise: float = 0.0
    exponentials: float = 0.0
    filled: tuple[float, ...] = ()

    def plus(self, other: Arithmetic, times: float = 1.0) -> Arithmetic:
        """This and another one, several times."""
        return Arithmetic(
            self.products + times * other.products,
            self.elementwise + times * other.elementwise,
            self.exponentials + times * other.exponentials,
            tuple(
                one + times * more
                for one, more in zip_longest(self.filled, other.filled, fillvalue=0.0)
            ),
        )

    def on(self, side: int) -> float:
        """FLOP that units of so many rows and columns spend on the products, full or not."""
        return self.filled[SIDES.index(side)] if self.filled and side in SIDES else self.products

    @property
    def flops(self) -> float:
        """FLOP of both units."""
        return self.products + self.elementwise


@dataclass(frozen=True, slots=True)
class Uneven:
    """An axis of a grid that may be cut, of which some places have more to do than others.

    Attributes:
      tensor, dimension: an operand of the call, or a result behind all operands, that is cut with
        it; the first factor of the dimension is the axis.
      shares: of the FLOP, for each group of places that is not cut; they sum up to 1.
    """

    tensor: int
    dimension: int
    shares: tuple[float, ...]

    def longest(self, parts: int) -> float:
        """How many times the mean of all parts the longest one has to do.

        >>> Uneven(0, 0, (0.1, 0.2, 0.3, 0.4)).longest(2)
        1.4
        """
        return float(np.asarray(self.shares).reshape(parts, -1).sum(1).max() * parts)

    def folded(self, parts: int) -> float:
        """The same where a device does an early and a late half of a part.

        >>> Uneven(0, 0, (0.1, 0.2, 0.3, 0.4)).folded(2)
        1.0
        """
        halves = np.asarray(self.shares).reshape(2 * parts, -1).sum(1)
        return float((halves + halves[::-1]).max() * parts)


@dataclass(frozen=True, slots=True)
class KernelWork:
    """The work of one call on whole arrays.

    Attributes:
      name: of the kernel.
      grid: its sizes; None where an operand says.
      arithmetic: what it computes.
      dtype: of the operands of its products.
      bytes: between memory and the chip.
      guessed: whether data decides how much it is.
      whole: (axis, reason) of the axes of its grid that are not cut.
      uneven: the axes of its grid along which parts have more or less to do.
      rings: what it sends where its sequence is cut, for each way to do that.
      unknown: what data alone decides and nobody has said, and as how much it is counted.
    """

    name: str
    grid: tuple[int | None, ...]
    arithmetic: Arithmetic
    dtype: str
    bytes: float
    guessed: bool
    whole: tuple[tuple[int, str], ...]
    uneven: tuple[Uneven, ...] = ()
    rings: tuple[Ring, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def flops(self) -> float:
        """FLOP of both units, one at least."""
        return max(self.arithmetic.flops, 1.0)


Counts = Callable[[Any], Arithmetic]
"""What an equation without a body computes."""
