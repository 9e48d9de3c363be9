"""What a stage of a plan saves, as plans and reports say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.lower.mpmd.cut.saving import StageChoice, bare, wanted
from autoshard.lower.mpmd.partition import Partition
from autoshard.plan.records import KeptValue
from autoshard.search.keep.kept_values import kept_values


@dataclass(frozen=True, slots=True)
class StageSaves:
    """What a stage saves for its backward pass, and the products that it computes again there.

    Attributes:
      title: what the choice is called.
      values: without the number of the stage in their names.
      offloaded: the names of stacks that wait in the memory of the host, likewise; also of what
        loops carry, which is none of the values.
      prefetch: whether these move a turn late there, and come a turn early.
    """

    title: str
    values: tuple[KeptValue, ...]
    offloaded: tuple[str, ...] = ()
    prefetch: bool = False

    @property
    def choice(self) -> StageChoice:
        """Return what the stage saves as a cut takes it."""
        return StageChoice(self.names, frozenset(self.offloaded), self.prefetch)

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
    for stage, (residuals, choice) in enumerate(
        zip(saves.staged.residuals, saves.chosen, strict=True)
    ):
        mine, _ = wanted(residuals, choice)
        away = {name for name in residuals.homes if bare(name) in choice.offloaded}
        values = kept_values(residuals, mine, away)
        named = tuple(replace(one, name=bare(one.name)) for one in values)
        offloaded = tuple(sorted(choice.offloaded))
        found.append(StageSaves(titles[stage], named, offloaded, choice.prefetch))
    return tuple(found)
