"""Which mesh shapes are worth considering for a machine.

A mesh of fine axes contains every coarser one: on 4x4x4 the layouts that always use the first two
axes together are those of 16x4. So only the finest shapes of up to `axes` axes are candidates; of
those whose collectives cost the same under a renaming of axes, one is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from autoshard.cost.collective import MeshTopology
from autoshard.machine.machine import Machine

KINDS = ("all_gather", "all_reduce", "all_to_all")


def candidate_meshes(machine: Machine, *, axes: int = 3) -> tuple[tuple[int, ...], ...]:
    """Mesh shapes to search, the one most alike the physical network first."""
    shapes = list(_factorings(machine.chips, axes))
    finest = [s for s in shapes if not any(s != t and _is_coarser(s, t) for t in shapes)]
    seen: dict[object, tuple[int, ...]] = {}
    for shape in sorted(finest, key=lambda s: (_latency(machine, s), max(s))):
        seen.setdefault(_signature(machine, shape), shape)
    return tuple(seen.values())


def _factorings(number: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Ordered factorings of `number` into one to `axes` factors of at least 2 (or (1,))."""
    if number == 1:
        yield (1,)
        return
    yield (number,)
    if axes > 1:
        for first in range(2, number):
            if number % first == 0:
                for rest in _factorings(number // first, axes - 1):
                    yield (first, *rest)


def _is_coarser(coarse: tuple[int, ...], fine: tuple[int, ...]) -> bool:
    """Whether merging neighbouring axes of `fine` gives `coarse`."""
    position = 0
    for size in coarse:
        product = 1
        while product < size and position < len(fine):
            product *= fine[position]
            position += 1
        if product != size:
            return False
    return position == len(fine)


def _rates(machine: Machine, shape: tuple[int, ...]) -> dict[tuple[int, ...], tuple[float, ...]]:
    topology = MeshTopology(machine, shape)
    rates = {}
    for count in range(1, len(shape) + 1):
        for group in itertools.combinations(range(len(shape)), count):
            found = [topology.rate(kind, group) for kind in KINDS]
            rates[group] = tuple(
                number for rate in found for number in (rate.latency_seconds, rate.seconds_per_byte)
            )
    return rates


def _latency(machine: Machine, shape: tuple[int, ...]) -> float:
    """Seconds per byte of gathers over the single axes, the worst of them."""
    rates = _rates(machine, shape)
    return max(rates[(axis,)][1] for axis in range(len(shape)))


def _signature(machine: Machine, shape: tuple[int, ...]) -> object:
    rates = _rates(machine, shape)
    options = []
    for order in itertools.permutations(range(len(shape))):
        renamed = {
            tuple(sorted(order.index(axis) for axis in group)): rate
            for group, rate in rates.items()
        }
        options.append((tuple(shape[axis] for axis in order), tuple(sorted(renamed.items()))))
    return min(options)
