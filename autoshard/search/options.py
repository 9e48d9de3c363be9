"""What a search is asked beside program and machine, and what it knows from earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard.cost.corrections import NONE, Corrections
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan
from autoshard.problem.memo import Shared
from autoshard.problem.requirements.records import Requirement
from autoshard.program.facts import Facts
from autoshard.search.progress import SearchProgress
from autoshard.search.warm_start import Earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """What is wanted of a search.

    Attributes:
      mesh: axis names and sizes, or sizes of the parts into which an axis is split
        (`autoshard.program.subaxes`); without it, mesh shapes of up to three axes are searched.
      memory_limit: bytes per device; default, what the chip has less its reserve. The plan fits it
        in both orders (`autoshard.plan.fits`).
      time_limit: seconds for the whole search.
      gap: stop when the plan is proven to be within this fraction of the best.
      baselines: also price the well-known schemes on the same mesh.
      fold: let repeated blocks share their decisions.
      progress: called as the search goes on. An interrupt (Ctrl-C) ends the search with the best
        plan so far, if there is one.
      options: kept in the plan beside those of the trace (`user_rules` of a file, say).
      requirements: records or statements; see `autoshard.problem.requirements`. Only where `mesh`
        is given can they name its axes.
      constraints: whether shardings that the program itself asks for (`with_sharding_constraint`,
        shardings of a `jax.jit`, `shard_alike`) are requirements too.
      join_sums: whether terms of a sum of matrix products may stay unreduced until they are added
        up, for one collective to settle them all (`autoshard.plan.unreduced_sums`).
      start: a plan to begin with, of this program or one like it (`autoshard.search.replan`).
      known_bound: seconds that the caller can prove no plan on these mesh shapes to undercut.
      corrections: of the prices, from `autoshard.study.residuals`.
      count: how many plans are wanted, see `autoshard.search.alternatives`.
    """

    mesh: Mapping[str, int | Sequence[int]] | None = None
    memory_limit: float | None = None
    time_limit: float = 60.0
    gap: float = 0.001
    baselines: bool = True
    fold: bool = True
    progress: Callable[[SearchProgress], None] | None = None
    options: Mapping[str, Any] | None = None
    requirements: Sequence[Requirement | str] = ()
    constraints: bool = True
    join_sums: bool = True
    start: Plan | None = None
    known_bound: float = 0.0
    corrections: Corrections = NONE
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """What earlier searches and the caller know.

    Attributes:
      facts: of the program on the machine's chip, where it was analysed.
      earlier: what searches of alike problems learned, by mesh shape.
      shared: tables that searches of alike problems share, by mesh shape; added to.
      only_better: search a mesh shape for plans that are cheaper than the best one alone; it may
        have none.
      seeks_limit: tell what is infeasible the smallest limit that works, which takes several
        searches.
      counted_on: the machine whose collectives limits count, by default the one searched for.
    """

    facts: Facts | None = None
    earlier: Mapping[tuple[int, ...], Earlier] = field(default_factory=dict)
    shared: dict[tuple[int, ...], Shared] = field(default_factory=dict)
    only_better: bool = False
    seeks_limit: bool = True
    counted_on: Machine | None = None
