"""The options of a search, and the warm start that earlier searches provide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from autoshard.cost.corrections import NONE, Corrections
from autoshard.machine.machine import Machine
from autoshard.near import did_you_mean
from autoshard.plan.plan import Plan
from autoshard.problem.memo import Shared
from autoshard.problem.requirements.records import Requirement
from autoshard.program.facts import Facts
from autoshard.search.progress import SearchProgress
from autoshard.search.warm_start import Earlier

Remat = Literal["respect", "search", "offload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The options of a search.

    Attributes:
      mesh: axis names and sizes. An axis may be split into parts, given by their sizes
        (`autoshard.program.subaxes`). Without a mesh, the search covers mesh shapes of up to three
        axes.
      memory_limit: bytes per device; by default the chip's memory less its reserve. The plan fits
        the limit in both execution orders (`autoshard.plan.fits`).
      time_limit: seconds for the whole search.
      gap: stop when the plan is proven to be within this fraction of the optimum.
      baselines: also price the well-known schemes on the same mesh, and paddings of odd sizes
        (`autoshard.search.padding`). Without it, plans name odd sizes and no price of their
        padding.
      fold: let repeated blocks share their decisions.
      progress: a callback that receives progress during the search. An interrupt (Ctrl-C) ends the
        search with the best plan so far, if there is one.
      options: extra options to record in the plan beside those of the trace, for example the
        `user_rules` of a file.
      requirements: records or statements; see `autoshard.problem.requirements`. They can name mesh
        axes only if `mesh` is given.
      constraints: whether shardings that the program itself asks for (`with_sharding_constraint`,
        shardings of a `jax.jit`, `shard_alike`) also count as requirements.
      complete: whether all that these leave open lies as Shardy's propagation completes them
        (`autoshard.lower.facts.completed`): the plan that the compiler makes of the program as it
        is. It needs a mesh with the axes of the program's own.
      join_sums: whether the terms of a sum of matrix products may stay unreduced until they are
        added, so that one collective reduces them all (`autoshard.plan.unreduced_sums`).
      start: a plan of this program, or of a similar one, to start from
        (`autoshard.search.replan`).
      known_bound: a lower bound in seconds, proven by the caller, for all plans on these mesh
        shapes.
      corrections: corrections of the prices, from `autoshard.study.residuals`.
      remat: "respect" what the program saves for its backward pass and computes again there, or
        "search" for the best of several choices of that (`autoshard.search.keep`); "offload" for
        them, and for stacks of loops that wait in the memory of the host, too.
      accumulate: numbers of microbatches to choose from: the step works on so many equal parts of
        its batch, one after another (`autoshard.program.microbatches`).
      by_schedule: where the compiler schedules every plan on its own, whether that decides among
        plans that cost nearly the same, and whether to search again with the share of collectives
        that its schedule waits for (`autoshard.search.scheduled`).
      count: the number of plans wanted; see `autoshard.search.alternatives`.

    Raises:
      ValueError: `remat` is not one of its words.
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
    complete: bool = False
    join_sums: bool = True
    start: Plan | None = None
    known_bound: float = 0.0
    corrections: Corrections = NONE
    remat: Remat = "respect"
    accumulate: Sequence[int] = (1,)
    by_schedule: bool = True
    count: int = 1

    def __post_init__(self) -> None:
        words = get_args(Remat)
        if self.remat not in words:
            hint = did_you_mean(str(self.remat), words) or "use one of them"
            known = ", ".join(map(repr, words))
            raise ValueError(f"remat={self.remat!r} is not one of {known}; {hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """What earlier searches and the caller already know.

    Attributes:
      facts: the analysis of the program on the machine's chip, if it was already done.
      earlier: what searches of similar problems learned, by mesh shape.
      shared: tables that searches of similar problems share, by mesh shape. The search adds to
        them.
      only_better: search a mesh shape only for plans that are cheaper than the incumbent; it may
        have none.
      seeks_limit: when no plan fits, find the smallest memory limit that works. This takes several
        searches.
      counted_on: the machine whose collectives are counted against limits on collectives; by
        default the machine of the search.
    """

    facts: Facts | None = None
    earlier: Mapping[tuple[int, ...], Earlier] = field(default_factory=dict)
    shared: dict[tuple[int, ...], Shared] = field(default_factory=dict)
    only_better: bool = False
    seeks_limit: bool = True
    counted_on: Machine | None = None
