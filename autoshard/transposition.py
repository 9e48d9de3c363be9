"""An operand that lies in memory otherwise than its op reads it, and what it takes to turn it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from autoshard.coalescing import Order, is_coalesced


@dataclass(frozen=True, slots=True)
class Transposition:
    """An operand that lies otherwise than its op reads it.

    Attributes:
      position: of the operand.
      lies: its order.
      wanted: the orders in which the op can read it; it is put in the first of them.
      copy: whether it is written anew in that order, besides being made: always, unless an
        elementwise op makes it for this reader alone, and can as well write it so.
      jumps: whether what it is made from must be read out of order, unless that is coalesced.
      batch: dimensions of the operand that are a product's batch.
      alone: whether it is transposed where `batch` is cut to one element, or where it is not
        (`autoshard.unbatched`); None: in any case.
    """

    position: int
    lies: Order
    wanted: tuple[Order, ...]
    copy: bool
    jumps: bool = True
    batch: Order = ()
    alone: bool | None = None


@dataclass(frozen=True, slots=True)
class Transpositions:
    """All of a program.

    Attributes:
      of_op: by op index.
      bases: by op index, the values that are transposed: the operands, or what was first made in
        their order. A value is put in another order once, for all that is fused after it.
    """

    of_op: Mapping[int, tuple[Transposition, ...]]
    bases: Mapping[int, tuple[int, ...]]


@functools.lru_cache(maxsize=65_536)
def transposed_bytes(
    one: Transposition, replaces: float, sizes: tuple[int, ...], itemsize: int, transaction: float
) -> tuple[float, float, float]:
    """(bytes moved besides what is read and written anyway, bytes of a copy, its net bytes).

    Args:
      one: what is transposed.
      replaces: bytes per element of what is not held meanwhile.
      sizes: of the operand's dimensions on a device.
      itemsize: bytes of an element.
      transaction: bytes of a memory transaction.
    """
    if one.alone is not None and one.alone != all(sizes[d] == 1 for d in one.batch):
        return 0.0, 0.0, 0.0
    lies, *wanted = (tuple(d for d in order if sizes[d] > 1) for order in (one.lies, *one.wanted))
    if lies in wanted:
        return 0.0, 0.0, 0.0
    elements = math.prod(sizes)
    jumps = one.jumps and not is_coalesced(sizes, lies, wanted[0])
    copy = float(elements * itemsize * one.copy)
    held = max(copy - elements * replaces, 0.0) if jumps else 0.0
    return 2 * copy + elements * max(transaction - itemsize, 0.0) * jumps, copy, held
