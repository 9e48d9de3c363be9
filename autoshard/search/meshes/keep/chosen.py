"""Decides what each stage of a cut saves, together with the order of the tasks.

All stages are priced with every choice, each a way to run the stage: seconds of its tasks, bytes
that a microbatch keeps, and bytes that stay. Which way each stage runs is solved with the schedule
(`autoshard.solve.schedule.optimise.variants`), within the memory of each mesh: stages at which many
microbatches wait for their backward pass may have to compute again what others save.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autoshard.lower.mpmd.partition import Partition
from autoshard.machine.cluster import Cluster
from autoshard.search.meshes.bounds.ranking import Ranked
from autoshard.search.meshes.choices import Placement
from autoshard.search.meshes.price import StagePrice
from autoshard.search.meshes.problem import (
    TICK,
    host_limit,
    outer_seconds,
    ticks,
    transfers,
    variant_of,
)
from autoshard.search.meshes.request import Request
from autoshard.search.meshes.stage_prices import StagePrices
from autoshard.search.meshes.stage_program import Mode, StageProgram
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.optimise.variants import Variant, VariantOutcome, applied, choose
from autoshard.units import format_bytes

Cutter = Callable[[tuple[str, ...]], tuple[Partition, tuple[StageProgram, ...]]]
"""Cuts the step into stages that save what these titles say."""
CHOICE_GAP = 0.002
"""The relative gap at which a choice for all stages is good enough."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """What the stages of a cut save.

    Attributes:
      titles: for every stage; none where the stages save what the program says.
      bound: a lower bound in seconds for all choices and orders, at the prices of the stages;
        infinite where nothing was chosen.
    """

    titles: tuple[str, ...]
    bound: float = math.inf


def choose_saved(
    request: Request,
    prices: StagePrices,
    choice: Ranked,
    cut: Cutter,
    stop: float,
    level: int,
) -> Chosen | str:
    """Return what the stages of a cut save, or why there is no choice.

    Args:
      cut: cuts the step with a title for each stage.
      prices, stop, level: as for `StagePrices.of`.
    """
    placement, limits = choice.placement, [int(limit) for limit in request.limits]
    tables, notes = _tables(request, prices, choice, cut, stop, level)
    unpriced = [stage for stage, table in enumerate(tables) if not table]
    if unpriced:
        return "; ".join(f"stage {stage}: {notes[stage]}" for stage in unpriced)
    partition, _ = cut((request.titles[0],) * placement.stages)
    empty = _problem(partition, placement, request.cluster)
    some = [next(iter(table.values())) for table in tables]
    once = [
        ticks(one) for one in outer_seconds(partition, some, placement.mesh_of, request.cluster)
    ]
    for mesh, one in zip(placement.mesh_of, some, strict=True):
        once[mesh] = max(once[mesh] - ticks(one.update_seconds), 0)
    rooms = [host_limit(machine) for machine in request.cluster.meshes]
    ways = [_ways(table, choice.mode) for table in tables]
    variants = [list(table.values()) for table in ways]

    def best(of: Sequence[Sequence[Variant]], share: float) -> VariantOutcome:
        left = max(share * (stop - time.monotonic()), 1.0)
        options = {"once": once, "rooms": rooms, "gap": CHOICE_GAP, "time_limit": left}
        return choose(empty, of, limits, **options)

    here = [[way for way in row if not way.elsewhere] for row in variants]
    uses_host = here != variants
    outcome = best(variants, 0.5 if uses_host else 1.0)
    if uses_host and outcome.chosen is not None and all(here):
        without = best(here, 1.0)
        if without.value <= outcome.value * (1 + CHOICE_GAP) and without.chosen is not None:
            numbers = zip(variants, here, without.chosen, strict=True)
            chosen = tuple(row.index(some[way]) for row, some, way in numbers)
            outcome = replace(without, chosen=chosen, bound=min(outcome.bound, without.value))
    if outcome.chosen is None:
        leanest = [min(row, key=lambda one: one.after_forward) for row in variants]
        _, lacking = applied(empty, leanest, limits)
        if not any(lacking):
            return "hosts have too little memory for what the stages that fit keep there"
        worst = format_bytes(max(lacking))
        return f"too little memory: where stages save least, {worst} of a device are missing"
    titles = tuple(list(table)[way] for table, way in zip(ways, outcome.chosen, strict=True))
    return Chosen(titles, float(outcome.bound) * TICK)


def _tables(
    request: Request,
    prices: StagePrices,
    choice: Ranked,
    cut: Cutter,
    stop: float,
    level: int,
) -> tuple[list[dict[str, StagePrice]], dict[int, str]]:
    """Return the prices of every stage by title, and why stages have none."""
    placement = choice.placement
    tables: list[dict[str, StagePrice]] = [{} for _ in range(placement.stages)]
    notes: dict[int, str] = {}
    for at, title in enumerate(request.titles):
        share = (stop - time.monotonic()) / (len(request.titles) - at)
        if share <= 0 and all(tables):
            break
        until = time.monotonic() + max(share, 0.0)
        titles = (title,) * placement.stages
        partition, programs = cut(titles)
        bricks = choice.bricks_of(titles)
        found = prices.each(partition, programs, placement, bricks, until, level)
        for stage, one in found.items():
            if isinstance(one, str):
                notes.setdefault(stage, one)
            else:
                tables[stage][title] = one
    return tables, notes


def _problem(partition: Partition, placement: Placement, cluster: Cluster) -> Instance:
    """Return the schedule problem of stages whose times and memory are not decided."""
    meshes, zeros = len(cluster.meshes), (0,) * placement.stages
    return Instance(
        meshes=meshes,
        microbatches=partition.microbatches,
        forward=(1,) * placement.stages,
        backward=zeros,
        weight=zeros,
        placement=placement.mesh_of,
        transfer=transfers(partition, placement.mesh_of, cluster),
        time_scale=(1,) * meshes,
        memory_forward=zeros,
        memory_backward=zeros,
        memory_weight=zeros,
    )


def _ways(table: dict[str, StagePrice], mode: Mode) -> dict[str, Variant]:
    """Return the ways that no other one beats, by title."""
    left: dict[str, Variant] = {}
    for title, price in table.items():
        way = variant_of(price, mode)
        if any(other.beats(way) for other in left.values()):
            continue
        left = {name: one for name, one in left.items() if not way.beats(one)}
        left[title] = way
    return left
