"""Choices of what a stage saves, by title: the same ones as on one mesh.

They are what the program says, the policies that people use, and the cheapest choice at rough
prices (`autoshard.search.keep.proposals`). A title means a set of names in each stage, and stages
need not have the same title.

Where stacks may lie in the memory of the host, there are more
(`autoshard.search.meshes.keep.away`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from autoshard.lower.mpmd.cut.saving import Choice, StageChoice, Staged, bare, wanted
from autoshard.machine.machine import Machine
from autoshard.program.keep import Residuals
from autoshard.search.keep.proposals import choices
from autoshard.search.meshes.keep.away import Away, base_of, sent

WRITTEN = "as it is written"


def titled(staged: Staged, titles: Sequence[str], machine: Machine) -> Choice:
    """What stages save that have these titles, one for each.

    Args:
      machine: with whose chips a stage is priced roughly.
    """
    pairs = zip(staged.residuals, titles, strict=True)
    return [_choice(residuals, title, machine) for residuals, title in pairs]


def known_titles(staged: Staged, machine: Machine) -> list[str]:
    """The titles that make a difference in any stage, what the program says first."""
    return different(staged, (WRITTEN, *_all(staged.residuals[0], machine)), machine)


def different(
    staged: Staged, titles: Iterable[str], machine: Machine, known: Iterable[str] = ()
) -> list[str]:
    """Those of the titles that make another difference than others before them, and the known."""

    def told(title: str) -> tuple[object, ...]:
        return _told(staged, titled(staged, [title] * len(staged.residuals), machine))

    seen = {told(title) for title in known}
    found: dict[tuple[object, ...], str] = {}
    for title in titles:
        if (key := told(title)) not in seen:
            found.setdefault(key, title)
    return list(found.values())


def _told(staged: Staged, saved: Choice) -> tuple[object, ...]:
    """What is on stacks in each stage, by which choices are compared."""
    found = []
    for residuals, choice in zip(staged.residuals, saved, strict=True):
        names, _ = wanted(residuals, choice)
        found.append((residuals.on_stacks(names), choice.offloaded))
    return tuple(found)


def _all(residuals: Residuals, machine: Machine) -> dict[str, frozenset[str]]:
    return dict(choices(residuals, machine.chip, machine.chips, math.inf))


def _choice(residuals: Residuals, title: str, machine: Machine) -> StageChoice:
    base, away = base_of(title)
    if away is None:
        return StageChoice(_names(residuals, base, machine))
    names = residuals.saved_as_written() if base == WRITTEN else frozenset[str]()
    if away is not Away.CHEAPEST and base != WRITTEN and residuals.values:
        names = _on_stacks(residuals, base, machine)
    saved, offloaded = sent(residuals, away, names, machine)
    own = None if saved == residuals.saved_as_written() else frozenset(map(bare, saved))
    early = machine.chip.compiler.name != "xla:tpu"
    return StageChoice(own, frozenset(map(bare, offloaded)), bool(offloaded) and early)


def _names(residuals: Residuals, title: str, machine: Machine) -> frozenset[str] | None:
    if title == WRITTEN or not residuals.values:
        return None
    return frozenset(map(bare, _on_stacks(residuals, title, machine)))


def _on_stacks(residuals: Residuals, title: str, machine: Machine) -> frozenset[str]:
    pinned = {one.name for one in residuals.values if one.pinned}
    return frozenset(residuals.on_stacks(_all(residuals, machine)[title] | pinned))
