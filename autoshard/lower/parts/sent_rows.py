"""Rows that the parts of a user's `shard_map` send to each other, on one device.

See `autoshard.compat.row_exchange`. A device has some of the parts, and of each batch: their rows
are one array of the collective, and what each part has for each other one is a piece of it.

    operand   [batch, own, rows]  ->  [batch x own x rows]
    numbers   [batch, own, devices x others x pieces]
                ->  [devices, batch x own x others x pieces]

with `others` the parts of another device. XLA:CPU has no such collective: there the rows of all
parts are gathered, and those that belong here are picked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard.compat.row_exchange import exchanged, received
from autoshard.lower.parts.cut import Cut
from autoshard.lower.parts.row_exchange import in_lanes


def sent_rows(equation: Any, arrays: Sequence[Any], cut: Cut) -> list[Any]:
    """The result of an exchange of rows on one device."""
    batch = equation.params["batch"]
    axes = cut.axes(0, batch)
    if not axes:
        return [exchanged(*arrays, batch=batch)]
    operand, output, *numbers = arrays
    names, devices = cut.devices.named(axes), cut.devices.count(axes)
    rows, places = (jnp.reshape(one, (-1, *one.shape[batch + 2 :])) for one in (operand, output))
    of_rows, of_places = operand.shape[batch + 1], output.shape[batch + 1]
    begin, count, place, taken = (
        _to_each_device(one, batch, devices, turned=k == 3) for k, one in enumerate(numbers)
    )
    own, batches = operand.shape[batch], math.prod(operand.shape[:batch])
    first = jnp.arange(batches * own, dtype=jnp.int32).reshape(batches, own)
    begin = begin + first[:, :, None, None] * of_rows  # of the part that sends
    place = place + first[:, None, :, None] * of_places  # of the part that receives
    pieces = [one.reshape(-1) for one in (begin, count, place, taken)]

    def sent(rows: Any, places: Any, *pieces: Any) -> Any:
        found = lax.ragged_all_to_all(in_lanes(rows), in_lanes(places), *pieces, axis_name=names)
        return found.reshape(places.shape)

    def gathered(rows: Any, places: Any, begin: Any, count: Any, place: Any, taken: Any) -> Any:
        every = lax.all_gather(rows, names, tiled=False)
        from_all = [
            lax.all_to_all(one.reshape(devices, -1), names, 0, 0, tiled=True)
            for one in (begin, count, place)
        ]
        begins = from_all[0] + jnp.arange(devices, dtype=jnp.int32)[:, None] * rows.shape[0]
        flat = every.reshape(-1, *rows.shape[1:])
        counts = jnp.minimum(from_all[1].ravel(), taken)
        return received(flat, places, begins.ravel(), counts, from_all[2].ravel())

    found = lax.platform_dependent(rows, places, *pieces, cpu=gathered, default=sent)
    return [found.reshape(output.shape)]


def _to_each_device(numbers: Any, batch: int, devices: int, *, turned: bool) -> Any:
    """Numbers of this device's parts as `[devices, batch, sending part, receiving part, pieces]`.

    Those that are `turned` are said by the part that receives.
    """
    own = numbers.shape[batch]
    apart = numbers.astype(jnp.int32).reshape(
        -1, own, devices, own, numbers.shape[-1] // devices // own
    )
    return jnp.transpose(apart, (2, 0, 3, 1, 4) if turned else (2, 0, 1, 3, 4))
