"""Choices of a stage whose stacks wait for its backward pass in the memory of the host, by title.

What moves there while the forward pass runs costs no time, and takes of the device what is on its
way alone. So, at rough prices, as many bytes are offered for a microbatch as cross the link in the
seconds of its forward pass:

    EVERY      all stacks of a choice, however long they take: where memory is scarce
    BESIDE     of a choice as much as there is time for, the largest stacks first
    CHEAPEST   what is cheapest to save of as much as there is time for, nothing of it on the device

How many microbatches wait at a time is not known here: the schedule decides it, within the memory
of the devices and of the hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from autoshard.machine.machine import Machine
from autoshard.program.keep import Residuals
from autoshard.search.keep.proposals import again_seconds, around


class Away(Enum):
    """What of a choice lies on the host; the values end its title."""

    EVERY = ", its stacks on the host"
    BESIDE = ", on the host what moves there beside the forward pass"
    CHEAPEST = "cheapest that moves to the host beside the forward pass"


def base_of(title: str) -> tuple[str, Away | None]:
    """The title of a choice without its end, and what of it lies on the host."""
    for away in Away:
        if title.endswith(away.value):
            return title.removesuffix(away.value), away
    return title, None


def offered(bases: Sequence[str], least: Collection[str]) -> list[str]:
    """The titles of choices with stacks on the host.

    Args:
      bases: choices of what is saved.
      least: those that save so little that all of it may lie there.
    """
    return [
        Away.CHEAPEST.value,
        *(base + Away.EVERY.value for base in bases if base in least),
        *(base + Away.BESIDE.value for base in bases),
    ]


def sent(
    residuals: Residuals, away: Away, saved: frozenset[str], machine: Machine
) -> tuple[frozenset[str], frozenset[str]]:
    """The names of what a stage saves, and of its stacks on the host.

    Args:
      saved: what it saves, where that is not `CHEAPEST`.
    """
    host, chip, chips = machine.host, machine.chip, machine.chips
    if host is None or not residuals.values:
        return saved, frozenset()
    again = {one.name: again_seconds(one, chip, chips, True) for one in residuals.values}
    room = min(sum(again.values()) * host.rate("to_host"), host.bytes_per_chip)
    pinned = frozenset(one.name for one in residuals.values if one.pinned)
    if away is Away.CHEAPEST and not residuals.loops:
        saved = frozenset(residuals.on_stacks(pinned))
    elif away is Away.CHEAPEST:
        size = {one.name: one.bytes / chips for one in residuals.values}
        carried = residuals.stacks(residuals.on_stacks(pinned))
        left = room - sum(carried[name] for name in carried.keys() - size.keys()) / chips
        chosen, _ = around(residuals, dict.fromkeys(size, 0.0), again, size, max(left, 0.0))
        saved = frozenset(residuals.on_stacks(chosen | pinned))
    stacks = {name: size / chips for name, size in residuals.stacks(saved).items()}
    if away is Away.EVERY:
        return saved, frozenset(stacks)
    return saved, _largest(stacks, room)


def _largest(sizes: Mapping[str, float], room: float) -> frozenset[str]:
    """Names of the largest that have room together."""
    found = []
    for name in sorted(sizes, key=lambda one: -sizes[one]):
        if sizes[name] <= room:
            found.append(name)
            room -= sizes[name]
    return frozenset(found)
