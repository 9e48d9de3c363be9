"""Ragged products whose rows and groups are cut over the same axes: rows go to their groups.

See `autoshard.program.ragged`. Rows lie in the order of their groups, so that the rows which one
device sends to another one stand together, and arrive in order. `counts[i, e]` rows of group `e`
lie with device `i`; of its own groups, device `j` sees all rows as one array of

    starts[i, j] = rows for j of the devices before i        total[j] = rows of all devices for j

and works on `window` of them at a time. XLA:CPU has no `ragged_all_to_all`: there all rows are
gathered, and those that belong here are picked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.compat.row_exchange import received
from autoshard.lower.parts.cut import Cut
from autoshard.program.kernels.known.record import LANES
from autoshard.program.ragged import ROUNDS, sizes_of_rows, window_rows

Integers = Any
"""Arrays of int32."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Who has rows of which groups, seen from one device.

    Attributes:
      names: the mesh axes over which rows are exchanged.
      place: this device's number among them.
      sent: `[devices, devices]`, rows that the first has and the second works on.
      first: `[devices, devices]`, where these begin in the first one's part.
      own: `[own groups]`, rows of this device's groups on all devices.
      rows, window: of a part, and those that are worked on at a time.
    """

    names: tuple[str, ...]
    place: Any
    sent: Integers
    first: Integers
    own: Integers
    rows: int
    window: int

    @property
    def starts(self) -> Integers:
        """`[devices, devices]`, where what is sent lies among all rows of the second one."""
        return jnp.cumsum(self.sent, axis=0, dtype=jnp.int32) - self.sent

    def within(self, number: Any) -> tuple[Integers, Integers, Integers]:
        """What is sent in one round: sizes, and where it begins in the part and in the window."""
        begin = number * self.window
        low = jnp.clip(self.starts, begin, begin + self.window)
        high = jnp.clip(self.starts + self.sent, begin, begin + self.window)
        there = jnp.clip(self.first + low - self.starts, 0, self.rows)
        return high - low, there, low - begin

    def sizes(self, number: Any) -> Integers:
        """The rows of each of this device's groups in one window."""
        return sizes_of_rows(self.own, number * self.window, self.window)

    def arrive(self, part: Any, number: Any) -> Any:
        """`[window, ...]`, this device's window of rows, from its part of all rows."""
        sizes, there, here = self.within(number)
        mine = self.place
        empty = jnp.zeros((self.window, *part.shape[1:]), part.dtype)

        def sent(part: Any, empty: Any) -> Any:
            found = lax.ragged_all_to_all(
                in_lanes(part),
                in_lanes(empty),
                there[mine],
                sizes[mine],
                here[mine],
                sizes[:, mine],
                axis_name=self.names,
            )
            return found.reshape(empty.shape)

        def gathered(part: Any, empty: Any) -> Any:
            all_parts = lax.all_gather(part, self.names, tiled=False)
            return _picked(all_parts, there[:, mine], sizes[:, mine], empty, here[:, mine])

        return lax.platform_dependent(part, empty, cpu=gathered, default=sent)

    def come_back(self, window: Any, into: Any, number: Any) -> Any:
        """`into`, this device's part, with the rows of it that were in any window."""
        sizes, there, here = self.within(number)
        mine = self.place

        def sent(window: Any, into: Any) -> Any:
            found = lax.ragged_all_to_all(
                in_lanes(window),
                in_lanes(into),
                here[:, mine],
                sizes[:, mine],
                there[:, mine],
                sizes[mine],
                axis_name=self.names,
            )
            return found.reshape(into.shape)

        def gathered(window: Any, into: Any) -> Any:
            all_windows = lax.all_gather(window, self.names, tiled=False)
            return _picked(all_windows, here[mine], sizes[mine], into, there[mine])

        return lax.platform_dependent(window, into, cpu=gathered, default=sent)

    def in_rounds(self, step: Callable[[Any, Any], Any], first: Any) -> Any:
        """What `step` makes of `first` in as many rounds as the fullest device needs."""
        rounds = -(-jnp.max(jnp.sum(self.sent, axis=0)) // self.window)

        def go_on(carry: tuple[Any, Any]) -> Any:
            return carry[0] < rounds

        def run(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            number, found = carry
            return number + 1, step(number, found)

        with jax.named_scope(ROUNDS):
            return lax.while_loop(go_on, run, (jnp.int32(0), first))[1]


def in_lanes(rows: Any) -> Any:
    """Rows whose elements fill whole tiles of a TPU: `[rows, ..., 128]`, where they can be cut so.

    XLA:TPU sends rows that are tiles of one row each otherwise, and takes four times as long to
    write and to copy these (libtpu 0.0.50.1, `[4096, 4096]` of bfloat16 on v5p).
    """
    size = math.prod(rows.shape[1:])
    return rows if size % LANES else rows.reshape(rows.shape[0], size // LANES, LANES)


def _picked(parts: Any, begin: Integers, sizes: Integers, into: Any, place: Integers) -> Any:
    """`into` with `sizes` rows of each of `parts`: from `begin` of that on, to `place` on."""
    rows = parts.shape[1]
    first = jnp.arange(parts.shape[0], dtype=jnp.int32) * rows
    return received(parts.reshape(-1, *parts.shape[2:]), into, first + begin, sizes, place)


def exchange(
    sizes: Any,
    cut: Cut,
    *,
    axes: tuple[int, ...],
    rows_cut: tuple[int, ...],
    groups_cut: tuple[int, ...],
    rows: int,
) -> Exchange:
    """The exchange of a ragged product.

    Args:
      sizes: int32 `[groups]`, of all rows.
      cut: how the product is cut.
      axes: over which rows and groups are cut together.
      rows_cut, groups_cut: over which either is cut beside.
      rows: of a part.
    """
    devices = cut.devices
    count, further, apart = (devices.count(one) for one in (axes, rows_cut, groups_cut))
    sizes = sizes.astype(jnp.int32)
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    parts = jnp.arange(count, dtype=jnp.int32) * further
    parts = parts + (devices.place(rows_cut).astype(jnp.int32) if rows_cut else 0)
    begin = (parts * rows)[:, None]
    low, high = (jnp.clip(one, begin, begin + rows) for one in (ends - sizes, ends))
    counts = high - low  # [devices, groups]
    each = sizes.shape[0] // (count * apart)
    groups = counts.reshape(count, count, apart, each)
    here = devices.place(groups_cut) if groups_cut else 0
    mine = lax.dynamic_index_in_dim(groups, here, 2, keepdims=False)
    before = (low - begin).reshape(count, count, apart, each)
    first = lax.dynamic_index_in_dim(before, here, 2, keepdims=False)[:, :, 0]
    place = devices.place(axes)
    own = lax.dynamic_index_in_dim(mine.sum(0, dtype=jnp.int32), place, 0, keepdims=False)
    return Exchange(
        devices.named(axes),
        place,
        mine.sum(2, dtype=jnp.int32),
        first,
        own,
        rows,
        window_rows(rows, apart),
    )
