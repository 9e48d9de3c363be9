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

Forward = Callable[..., tuple[Any, Any]]
"""Output and log-sum-exp `[b, n, t]` of queries, keys and values, under a causal mask or none."""

Backward = Callable[..., tuple[Any, Any, Any]]
"""Gradients of queries, keys and values, from these, log-sum-exp, output and its cotangent."""


@dataclass(frozen=True, slots=True)
class RingPlace:
    """Where a device stands in a ring, and how its arrays lie.

    Attributes:
      devices, axes: the mesh, and its axes along which the sequence is cut, major first.
      length: the dimension of queries, keys and values along which it lies.
      causal: whether queries see no keys behind them.
    """

    devices: Devices
    axes: tuple[int, ...]
    length: int = 1
    causal: bool = True

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
        half = keys[0].shape[self.length] // 2
        before = self.devices.place(self.axes) >= number
        same = jnp.where(before, 0, half)
        for start, first in ((half, 0), (same, same)):
            yield (
                start,
                first,
                [_part(one, start, d) for one, d in zip(rows, dims, strict=True)],
                [_part(one, first, self.length) for one in keys],
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


STATISTIC = 2
"""The dimension of a log-sum-exp along which the sequence lies."""


def ring_forward(place: RingPlace, arrays: Sequence[Any], attend: Forward) -> tuple[Any, Any]:
    """The output and the log-sum-exp of this device's queries.

    Args:
      place: in the ring.
      arrays: this device's queries, keys and values.
      attend: attention of whole arrays.
    """
    dims = place.length, STATISTIC
    if place.causal:
        arrays = [place.fold(one, place.length) for one in arrays]
    queries, *keys = arrays
    behind = place.passed(keys)
    out, log_sum = attend(queries, *keys, place.causal)

    def joined(sums: Any, new: Any) -> Any:
        total = jnp.logaddexp(sums[1], new[1])
        old, add = (jnp.exp(one - total)[..., None] for one in (sums[1], new[1]))
        if place.length == 1:
            old, add = jnp.swapaxes(old, 1, 2), jnp.swapaxes(add, 1, 2)
        return sums[0] * old + new[0].astype(sums[0].dtype) * add, total

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

    carry = behind, (out.astype(log_sum.dtype), log_sum)
    last, sums = _turned(turn, carry, place.count)
    found = step(last, sums, place.count - 1)
    if place.causal:
        narrow = found[0].astype(out.dtype), found[1]
        found = [place.unfold(one, d) for one, d in zip(narrow, dims, strict=True)]
    return found[0].astype(out.dtype), found[1]


def ring_backward(
    place: RingPlace, arrays: Sequence[Any], derive: Backward
) -> tuple[Any, Any, Any]:
    """The gradients of this device's queries, keys and values.

    Args:
      place: in the ring.
      arrays: this device's queries, keys, values, final log-sum-exp, output and its cotangent.
      derive: the gradients of attention of whole arrays.
    """
    length = place.length
    dims = (length, length, length, STATISTIC, length, length)
    if place.causal:
        arrays = [place.fold(one, d) for one, d in zip(arrays, dims, strict=True)]
    keys = arrays[1:3]
    rows, row_dims = [arrays[0], *arrays[3:]], [dims[0], *dims[3:]]
    wide = arrays[3].dtype
    behind = place.passed(keys)

    def derived(rows: Sequence[Any], keys: Sequence[Any], causal: bool) -> Any:
        return derive(rows[0], *keys, *rows[1:], causal)

    def add(total: Any, part: Any, start: Any) -> Any:
        return _put(total, _part(total, start, length) + part.astype(total.dtype), start, length)

    def step(keys: Any, to_queries: Any, to_keys: Any, number: Any) -> Any:
        if not place.causal:
            more, *parts = derived(rows, keys, False)
            sums = zip(to_keys, parts, strict=True)
            return to_queries + more.astype(wide), tuple(a + b for a, b in sums)
        for start, first, mine, theirs in place.pairs(number, rows, row_dims, keys):
            more, *parts = derived(mine, theirs, False)
            to_queries = add(to_queries, more, start)
            sums = zip(to_keys, parts, strict=True)
            to_keys = tuple(add(one, part, first) for one, part in sums)
        return to_queries, to_keys

    def turn(carry: Any, number: Any) -> Any:
        keys, to_queries, to_keys = carry
        after, arrived = place.passed(keys), place.passed(to_keys)
        return (after, *step(keys, to_queries, arrived, number)), None

    to_queries, *to_keys = derived(rows, keys, place.causal)
    narrow = to_queries.dtype
    carry = behind, to_queries.astype(wide), tuple(to_keys)
    last, *sums = _turned(turn, carry, place.count)
    to_queries, to_keys = step(last, sums[0], place.passed(sums[1]), place.count - 1)
    found = [to_queries.astype(narrow), *place.passed(to_keys)]
    if place.causal:
        found = [place.unfold(one, length) for one in found]
    return found[0], found[1], found[2]
