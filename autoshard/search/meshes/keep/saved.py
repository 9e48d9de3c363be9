"""What a stage of a plan saves, as plans and reports say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.lower.mpmd.cut.saving import bare
from autoshard.lower.mpmd.partition import Partition
from autoshard.plan.records import KeptValue
from autoshard.search.keep.kept_values import kept_values


@dataclass(frozen=True, slots=True)
class StageSaves:
    """What a stage saves for its backward pass, and the products that it computes again there.

    Attributes:
      title: what the choice is called.
      values: without the number of the stage in their names.
    """

    title: str
    values: tuple[KeptValue, ...]

    @property
    def names(self) -> frozenset[str]:
        """Return the names of what is saved."""
        return frozenset(one.name for one in self.values if one.saved)


def stage_saves(partition: Partition, titles: Sequence[str]) -> tuple[StageSaves, ...]:
    """Return what the stages of a cut save, for which titles were chosen; none where none were."""
    saves = partition.cut.saves
    if saves is None:
        return ()
    found = []
    for stage, (residuals, names) in enumerate(
        zip(saves.staged.residuals, saves.chosen, strict=True)
    ):
        wanted = residuals.saved_as_written() if names is None else frozenset(names)
        mine = [name for name in residuals.homes if name in wanted or bare(name) in wanted]
        values = kept_values(residuals, mine, ())
        named = tuple(replace(one, name=bare(one.name)) for one in values)
        found.append(StageSaves(titles[stage], named))
    return tuple(found)
