"""Attention on one device's part of the sequence, over keys and values that go round.

What is computed, and why under a causal mask halves are exchanged, says
`autoshard.program.kernels.ring`; the two functions here run it inside of a `jax.shard_map`, with
any attention of whole arrays for the pairs of parts. The device at place `i` sees in step `s` the
keys of `i - s`. Each step sends the next keys while it computes, and its loop is a `scan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard.lower.parts.manual import Devices

Forward = Callable[..., Sequence[Any]]
"""Output, log-sum-exp `[b, n, t]` and other statistics of rows, which grow to a maximum, of
queries, keys and values, under a causal mask or none."""

Backward = Callable[[Sequence[Any], Sequence[Any], bool], tuple[Sequence[Any], Sequence[Any]]]
"""Gradients of rows and of keys, each none or several, from arrays of rows, and keys and values,
under a causal mask or none."""


@dataclass(frozen=True, slots=True)
class RingPlace:
    """Where a device stands in a ring, and how its arrays lie.

    Attributes:
      devices, axes: the mesh, and its axes along which the sequence is cut, major first.
      length: the dimension of queries, keys and values along which it lies.
      causal: whether queries see no keys behind them.
      statistic: the dimension of a log-sum-exp along which it lies.
      keys_length: that of keys and values, where it is another one.
    """

    devices: Devices
    axes: tuple[int, ...]
    length: int = 1
    causal: bool = True
    statistic: int = 2
    keys_length: int | None = None

    @property
    def of_keys(self) -> int:
        """The dimension of keys and values along which the sequence lies."""
        return self.length if self.keys_length is None else self.keys_length

    @property
    def count(self) -> int:
        """How many devices there are in the ring."""
        return self.devices.count(self.axes)

    def send(self, array: Any, pairs: Sequence[tuple[int, int]]) -> Any:
        """What this device gets if each source of the pairs sends its array to the target."""
        return lax.ppermute(array, self.devices.named(self.axes), list(pairs))

    def passed(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """What the device before this one has."""
        pairs = [(k, (k + 1) % self.count) for k in range(self.count)]
        return tuple(self.send(one, pairs) for one in arrays)

    def fold(self, array: Any, dimension: int) -> Any:
        """Parts `i` and `2 n - 1 - i` of `2 n`, from parts `2 i` and `2 i + 1`."""
        even, odd = jnp.split(array, 2, dimension)
        if self.count > 2:
            even = self.send(even, self._halves(0))
        odd = self.send(odd, self._halves(1))
        own = self.devices.place(self.axes) % 2 == 0
        return jnp.concatenate([jnp.where(own, even, odd), jnp.where(own, odd, even)], dimension)

    def unfold(self, array: Any, dimension: int) -> Any:
        """The inverse of `fold`."""
        first, second = jnp.split(array, 2, dimension)
        own = self.devices.place(self.axes) % 2 == 0
        even, odd = jnp.where(own, first, second), jnp.where(own, second, first)
        if self.count > 2:
            even = self.send(even, [(b, a) for a, b in self._halves(0)])
        odd = self.send(odd, [(b, a) for a, b in self._halves(1)])
        return jnp.concatenate([even, odd], dimension)

    def _halves(self, odd: int) -> list[tuple[int, int]]:
        """From the devices that have part `2 i + odd`, to those that work on it."""
        parts = ((k, 2 * k + odd) for k in range(self.count))
        return [(k, min(part, 2 * self.count - 1 - part)) for k, part in parts]

    def pairs(
        self, number: Any, rows: Sequence[Any], dims: Sequence[int], keys: Sequence[Any]
    ) -> Iterator[tuple[Any, Any, list[Any], list[Any]]]:
        """The halves of a step that see each other, none of them masked within.

        Args:
          number: of the step, from 1.
          rows: arrays of this device's queries, and `dims` where their sequence lies.
          keys: keys and values that are here.

        Yields where the halves of rows and of keys start, and both halves.
        """
        half = keys[0].shape[self.of_keys] // 2
        before = self.devices.place(self.axes) >= number
        same = jnp.where(before, 0, half)
        for start, first in ((half, 0), (same, same)):
            yield (
                start,
                first,
                [_part(one, start, d) for one, d in zip(rows, dims, strict=True)],
                [_part(one, first, self.of_keys) for one in keys],
            )


def _part(array: Any, start: Any, dimension: int) -> Any:
    """Half of an array."""
    return lax.dynamic_slice_in_dim(array, start, array.shape[dimension] // 2, dimension)


def _put(array: Any, part: Any, start: Any, dimension: int) -> Any:
    return lax.dynamic_update_slice_in_dim(array, part, start, dimension)


def _turned(turn: Callable[[Any, Any], Any], carry: Any, devices: int) -> Any:
    """A carry behind all steps but the first and the last one."""
    if devices == 2:
        return carry
    return lax.scan(turn, carry, jnp.arange(1, devices - 1))[0]


def ring_forward(
    place: RingPlace,
    arrays: Sequence[Any],
    attend: Forward,
    finish: Callable[[Sequence[Any]], Sequence[Any]],
) -> list[Any]:
    """Results for this device's queries and all keys.

    Args:
      place: in the ring.
      arrays: this device's queries, keys and values.
      attend: attention of whole arrays.
      finish: from what `attend` makes to the results, an output and statistics; None for those that
        nobody reads.
    """
    if place.causal:
        dims = place.length, place.of_keys, place.of_keys
        arrays = [place.fold(one, d) for one, d in zip(arrays, dims, strict=True)]
    queries, *keys = arrays
    behind = place.passed(keys)
    out, *rest = attend(queries, *keys, place.causal)
    dims = place.length, *[place.statistic] * len(rest)

    def joined(sums: Any, new: Any) -> Any:
        total = jnp.logaddexp(sums[1], new[1])
        old, add = (jnp.exp(one - total)[..., None] for one in (sums[1], new[1]))
        if place.length < place.statistic:
            old, add = (jnp.swapaxes(one, place.length, place.statistic) for one in (old, add))
        out = sums[0] * old + new[0].astype(sums[0].dtype) * add
        return out, total, *map(jnp.maximum, sums[2:], new[2:])

    def step(keys: Any, sums: Any, number: Any) -> Any:
        if not place.causal:
            return joined(sums, attend(queries, *keys, False))
        for start, _, rows, theirs in place.pairs(number, [queries], dims[:1], keys):
            old = [_part(one, start, d) for one, d in zip(sums, dims, strict=True)]
            new = joined(old, attend(*rows, *theirs, False))
            places = zip(sums, new, dims, strict=True)
            sums = tuple(_put(one, part, start, d) for one, part, d in places)
        return sums

    def turn(carry: Any, number: Any) -> Any:
        keys, sums = carry
        return (place.passed(keys), step(keys, sums, number)), None

    carry = behind, (out.astype(rest[0].dtype), *rest)
    last, sums = _turned(turn, carry, place.count)
    wide, *rest = step(last, sums, place.count - 1)
    found = list(finish([wide.astype(out.dtype), *rest]))
    if place.causal:
        pairs = zip(found, dims, strict=False)
        found = [None if one is None else place.unfold(one, d) for one, d in pairs]
    return found


def ring_backward(
    place: RingPlace,
    rows: Sequence[Any],
    dims: Sequence[int],
    keys: Sequence[Any],
    derive: Backward,
) -> tuple[list[Any], list[Any]]:
    """The gradients of this device's rows, and of its keys and values.

    Args:
      place: in the ring.
      rows: this device's queries, and what else has a row for each of them.
      dims: of each of these, the dimension along which the sequence lies.
      keys: keys and values.
      derive: the gradients of attention of whole arrays.
    """
    if place.causal:
        rows = [place.fold(one, d) for one, d in zip(rows, dims, strict=True)]
        keys = [place.fold(one, place.of_keys) for one in keys]
    behind = place.passed(keys)

    def add(total: Any, part: Any, start: Any, d: int) -> Any:
        return _put(total, _part(total, start, d) + part.astype(total.dtype), start, d)

    def step(keys: Any, to_rows: Any, to_keys: Any, number: Any) -> Any:
        if not place.causal:
            found = derive(rows, keys, False)
            return tuple(
                tuple(one + part.astype(one.dtype) for one, part in zip(sums, parts, strict=True))
                for sums, parts in zip((to_rows, to_keys), found, strict=True)
            )
        for start, first, mine, theirs in place.pairs(number, rows, dims, keys):
            parts, their_parts = derive(mine, theirs, False)
            pairs = zip(to_rows, parts, strict=True)
            to_rows = tuple(add(one, part, start, place.length) for one, part in pairs)
            pairs = zip(to_keys, their_parts, strict=True)
            to_keys = tuple(add(one, part, first, place.of_keys) for one, part in pairs)
        return to_rows, to_keys

    def turn(carry: Any, number: Any) -> Any:
        keys, to_rows, to_keys = carry
        after, arrived = place.passed(keys), place.passed(to_keys)
        return (after, *step(keys, to_rows, arrived, number)), None

    to_rows, to_keys = derive(rows, keys, place.causal)
    wide = [one.astype(jnp.promote_types(one.dtype, jnp.float32)) for one in to_rows]
    last, *sums = _turned(turn, (behind, tuple(wide), tuple(to_keys)), place.count)
    wide, to_keys = step(last, sums[0], place.passed(sums[1]), place.count - 1)
    found = [one.astype(old.dtype) for one, old in zip(wide, to_rows, strict=True)]
    to_keys = list(place.passed(to_keys))
    if place.causal:
        found = [place.unfold(one, place.length) for one in found]
        to_keys = [place.unfold(one, place.of_keys) for one in to_keys]
    return found, to_keys
