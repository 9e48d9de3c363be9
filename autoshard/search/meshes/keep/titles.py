"""Choices of what a stage saves, by title: the same ones as on one mesh.

They are what the program says, the policies that people use, and the cheapest choice at rough
prices (`autoshard.search.keep.proposals`). A title means a set of names in each stage, and stages
need not have the same title.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoshard.lower.mpmd.cut.saving import Choice, Staged, bare
from autoshard.machine.machine import Machine
from autoshard.program.keep import Residuals
from autoshard.search.keep.proposals import choices

WRITTEN = "as it is written"


def titled(staged: Staged, titles: Sequence[str], machine: Machine) -> Choice:
    """What stages save that have these titles, one for each.

    Args:
      machine: with whose chips a stage is priced roughly.
    """
    pairs = zip(staged.residuals, titles, strict=True)
    return [_names(residuals, title, machine) for residuals, title in pairs]


def known_titles(staged: Staged, machine: Machine) -> list[str]:
    """The titles that make a difference in any stage, what the program says first."""
    seen: dict[tuple[object, ...], str] = {}
    for title in (WRITTEN, *_all(staged.residuals[0], machine)):
        saved = titled(staged, [title] * len(staged.residuals), machine)
        seen.setdefault(_told(staged, saved), title)
    return list(seen.values())


def _told(staged: Staged, saved: Choice) -> tuple[object, ...]:
    """What is on stacks in each stage, by which choices are compared."""
    found = []
    for residuals, names in zip(staged.residuals, saved, strict=True):
        if names is None:
            wanted = residuals.saved_as_written()
        else:
            wanted = {name for name in residuals.homes if bare(name) in names}
        found.append(residuals.on_stacks(wanted))
    return tuple(found)


def _all(residuals: Residuals, machine: Machine) -> dict[str, frozenset[str]]:
    return dict(choices(residuals, machine.chip, machine.chips, math.inf))


def _names(residuals: Residuals, title: str, machine: Machine) -> frozenset[str] | None:
    if title == WRITTEN or not residuals.values:
        return None
    pinned = {one.name for one in residuals.values if one.pinned}
    names = _all(residuals, machine)[title] | pinned
    return frozenset(map(bare, residuals.on_stacks(names)))
