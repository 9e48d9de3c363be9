"""What is known of an attention kernel whose results on parts of the keys can be joined.

The maps of a Pallas call say that its queries may be cut, but not how what it makes of some of the
keys is joined with what it makes of others. Of a kernel that is known, both its arrays' parts and
its mask are known too: it can be run on any queries and keys, under a causal mask or none, and so
as a ring (`autoshard.program.kernels.ring`).

    forward       besides its output, a part has the log-sum-exp of each row
    of queries    with log-sum-exp and output of whole rows, gradients of parts are summed up
    of keys       likewise, and these gradients go round with their keys
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from autoshard import compat
from autoshard.program.kernels.known.record import LANES
from autoshard.program.kernels.ring import Ring


@dataclass(frozen=True, slots=True, eq=False)
class Joinable:
    """An attention kernel that may be run in parts.

    Attributes:
      ring: what it sends as a ring, its arrays by number, operands first.
      lengths: the dimension of each array along which the sequence lies, by number.
      forward: whether it makes the output, else gradients.
      run: from its cut operands and whether the mask is causal to what it makes of them: forward to
        output, log-sum-exp and other statistics of rows that grow to a maximum; backward to its
        results. What repeats one element comes once.
      results: forward, from what `run` makes to the equation's results; likewise.
      repeats: the dimension in which an array repeats one element, by number.
      first: the number of the first result that `results` makes.
      constants: operands that must be these, by number.
    """

    ring: Ring
    lengths: dict[int, int]
    forward: bool
    run: Callable[[Sequence[Any], bool], list[Any]]
    results: Callable[[Sequence[Any]], list[Any]]
    repeats: dict[int, int]
    first: int
    constants: dict[int, Any] = field(default_factory=dict)

    def holds(self, constants: Sequence[Any]) -> bool:
        """Whether the operands that are constants of a program, None for others, are as needed."""
        given = dict(enumerate(constants))
        return all(
            given.get(k) is not None and np.array_equal(given[k], wanted)
            for k, wanted in self.constants.items()
        )

    def thin(self, number: int, array: Any) -> Any:
        """An array without what it repeats."""
        d = self.repeats.get(number)
        return array if d is None else lax.index_in_dim(array, 0, d, keepdims=False)

    def thick(self, number: int, array: Any, shape: Sequence[int]) -> Any:
        """The inverse of `thin`, of an array that has this shape."""
        d = self.repeats.get(number)
        return array if d is None else jnp.broadcast_to(jnp.expand_dims(array, d), shape)

    def length(self, number: int) -> int:
        """The dimension along which the sequence lies in a thin array."""
        d = self.lengths[number]
        return d - (self.repeats.get(number, d) < d)


def ring_of_parts(
    equation: Any,
    lengths: dict[int, int],
    *,
    causal: bool,
    keys: tuple[int, ...],
    summed: tuple[int, ...] = (),
    repeated: Mapping[int, int],
    beside: float = 0.0,
) -> Ring | None:
    """What an equation sends as a ring; None where its sequence has no parts of whole lanes.

    Args:
      equation: of the kernel.
      lengths: the dimension of each of its arrays along which the sequence lies.
      causal: whether queries see no keys behind them.
      keys, summed, beside: see `Ring`.
      repeated: the dimension in which an array repeats one element, by number.
    """
    arrays, count = (*equation.invars, *equation.outvars), len(equation.invars)
    sizes = {arrays[number].aval.shape[d] for number, d in lengths.items()}
    unit = LANES * (2 if causal else 1)
    if (causal and len(sizes) > 1) or any(size % unit for size in sizes):
        return None
    read = [k for k in lengths if k >= count and not compat.is_dropped(arrays[k])]
    return Ring(
        causal,
        tuple(k for k in lengths if k < count),
        tuple(read),
        keys,
        tuple(k for k in summed if k in read),
        repeated=tuple((k, arrays[k].aval.shape[d]) for k, d in repeated.items()),
        beside=beside,
        places=tuple(sorted(lengths.items())),
        parts=math.gcd(*sizes) // unit,
    )


def tile(block: int, part: int) -> int:
    """A block of a part that has so many rows, no larger than one of the whole."""
    return part if block >= part else math.gcd(block, part)
