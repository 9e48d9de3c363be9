"""Finds the best order of a pipeline's tasks, and proves how good it is.

1. Bounds from heads, tails and one mesh at a time (`autoshard.solve.schedule.optimise.bounds`).
2. Starts: all named schedules that the memory allows, what the caller knows, both with their W
   put anew (`autoshard.solve.schedule.optimise.refill`), lists by many priority rules
   (`autoshard.solve.schedule.optimise.rules`), and of many microbatches what a schedule of fewer
   gives when its middle is repeated (`autoshard.solve.schedule.optimise.stretch`).
3. Simulated annealing from the best of them, again and again
(`autoshard.solve.schedule.optimise.anneal`). 4. CP-SAT on the whole problem, where it is not too
large, asked for something strictly better: it
   finds that, or proves that there is none (`autoshard.solve.schedule.optimise.cp_sat`). With two
   threads or more, annealing goes on beside it. It is asked before the annealing, too, what is
   easily said.

Every order that is returned has been run by the simulator. Where BW takes less time than B and W
apart, both ways are tried, stage by stage; the bound then allows each task the better of the two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from autoshard.interrupts import acknowledge
from autoshard.solve.limit_hit import LimitHit
from autoshard.solve.problem import Status
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance, Number
from autoshard.solve.schedule.named import named_orders
from autoshard.solve.schedule.optimise.bounds import lower_bound
from autoshard.solve.schedule.optimise.flat import Flat, flatten
from autoshard.solve.schedule.optimise.outcome import ScheduleOutcome, ScheduleProgress
from autoshard.solve.schedule.optimise.proof import prove
from autoshard.solve.schedule.optimise.search import Search
from autoshard.solve.schedule.optimise.stretch import FEWEST_FOLD, SHORT_FOLD, stretched
from autoshard.solve.schedule.task import Order
from autoshard.solve.schedule.timeline import simulate

OBJECTIVES = ("makespan", "span")
SHORT_SHARE, SHORT_ROUNDS, SHORT_WORDS = 0.3, 12, 3
"""For schedules of fewer microbatches: the share of the time, rounds at most, words stretched."""


class InfeasibleLimitError(ScheduleError):
    """No schedule keeps the memory limit.

    Attributes:
      smallest: the smallest limit that one keeps, by mesh.
    """

    def __init__(self, instance: Instance, smallest: Sequence[Number]) -> None:
        self.smallest = tuple(smallest)
        assert instance.memory_limit is not None
        faults = [
            f"mesh {mesh} has a limit of {limit}, and one microbatch takes {least} there; "
            f"the smallest limit that works is {least}"
            for mesh, (limit, least) in enumerate(zip(instance.memory_limit, smallest, strict=True))
            if limit < least
        ]
        super().__init__("the memory limit", faults)


def smallest_limit(instance: Instance) -> tuple[Number, ...]:
    """What one microbatch takes of every mesh: the least limit that a schedule keeps.

    In a chain no gradient runs before all forwards of its microbatch, so a mesh holds all that
    these take; and one microbatch after the other needs no more. Where stages branch, less may do;
    such schedules are not looked for.
    """
    return tuple(
        sum(instance.memory_forward[stage] for stage in instance.on(mesh))
        for mesh in range(instance.meshes)
    )


def solve(
    instance: Instance,
    *,
    objective: str = "makespan",
    time_limit: float = 60.0,
    gap: float = 0.0,
    threads: int | None = None,
    seed: int = 0,
    warm_starts: Sequence[Order] = (),
    progress: Callable[[ScheduleProgress], None] | None = None,
) -> ScheduleOutcome:
    """The best order that is found in the time.

    With one thread and a time limit that is not reached, the answer depends on nothing but the
    arguments. An interrupt (Ctrl-C) ends the search with the best order so far.

    Args:
      objective: "makespan", or "span" for the longest time from a mesh's first start to its last
        end, which counts where steps follow each other without a barrier.
      time_limit: seconds.
      gap: stop once proven to be this close to the best, as a share.
      threads: of CP-SAT; by default the cores of the machine.
      warm_starts: orders to begin with; those that do not fit the instance are left out.
      progress: is told what is known, now and then.

    Raises:
      InfeasibleLimitError: no schedule keeps the memory limit.
      ScheduleError: the objective is none, or the memory has too many digits.
    """
    if objective not in OBJECTIVES:
        raise ScheduleError(f"the objective {objective!r}", [f"it is none of {OBJECTIVES}"])
    started = time.monotonic()
    needed = smallest_limit(instance)
    limits = instance.memory_limit or needed
    if any(limit < least for limit, least in zip(limits, needed, strict=True)):
        raise InfeasibleLimitError(instance, needed)
    threads = os.cpu_count() or 1 if threads is None else threads
    search = Search(
        flats=[flatten(instance, objective, fused) for fused in _fusions(instance)],
        bound=lower_bound(flatten(_relaxed(instance), objective)),
        gap=gap,
        deadline=started + time_limit,
        started=started,
        seed=seed,
        progress=progress,
    )
    interrupted = False
    try:
        orders = [*named_orders(instance).values(), *warm_starts]
        search.begin(orders)
        longer = [] if search.done else _from_fewer(search)
        if longer and search.word is not None:
            search.begin([search.flat.order(search.word), *orders, *longer])
        search.refine_fusion()
        if not search.done:
            prove(search, threads=threads, quick=True)
        search.anneal(search.first_rounds)
        if not search.done:
            prove(search, threads=threads)
        search.anneal(None)
    except KeyboardInterrupt as interrupt:
        acknowledge(interrupt)
        interrupted = True
    return _outcome(instance, search, interrupted)


def _from_fewer(search: Search) -> list[Order]:
    """Orders that are stretched from good ones of fewer microbatches, where there are many."""
    long = search.flat
    instance = long.instance
    if instance.fused is not None or instance.microbatches < FEWEST_FOLD * instance.meshes:
        return []
    fewer = replace(instance, microbatches=SHORT_FOLD * instance.meshes)
    short = flatten(fewer, long.objective)
    now = time.monotonic()
    first = Search(
        flats=[short],
        bound=lower_bound(short),
        gap=search.gap,
        deadline=now + SHORT_SHARE * (search.deadline - now),
        started=search.started,
        seed=search.seed,
        progress=None,
    )
    first.begin(named_orders(fewer).values())
    first.anneal(SHORT_ROUNDS)
    words = [word for _, word in first.pool[:SHORT_WORDS]]
    return [order for word in words for order in stretched(short, word, instance.microbatches)]


def _fusions(instance: Instance) -> list[Collection[int]]:
    """The sets of stages to fuse that are tried first."""
    if instance.fused is None:
        return [()]
    return [(), range(instance.stages)]


def _relaxed(instance: Instance) -> Instance:
    """The instance in which W takes no longer than it adds to B in BW.

    B, W and BW of a schedule of the instance hold those of one of this, which ends no later: its
    gradients are there, and its memory is given back, at least as early.
    """
    if instance.fused is None:
        return instance
    pairs = list(zip(instance.backward, instance.weight, instance.fused, strict=True))
    backward = tuple(min(b, fused) for b, _, fused in pairs)
    weight = tuple(min(w, fused - b) for b, (_, w, fused) in zip(backward, pairs, strict=True))
    return replace(instance, backward=backward, weight=weight, fused=None)


def _outcome(instance: Instance, search: Search, interrupted: bool) -> ScheduleOutcome:
    flat: Flat = search.flat
    seconds = time.monotonic() - search.started
    bound = flat.time(search.bound)
    if search.word is None:
        hit = LimitHit.INTERRUPTED if interrupted else LimitHit.TIME
        return ScheduleOutcome(
            instance, flat.objective, Status.UNKNOWN, None, None, bound, seconds, hit
        )
    order = flat.order(search.word)
    timeline = simulate(instance, order)
    proven = search.value <= search.bound and flat.exact
    hit = None
    if not proven:
        ended = LimitHit.GAP if search.done else LimitHit.TIME
        hit = LimitHit.INTERRUPTED if interrupted else ended
    return ScheduleOutcome(
        instance,
        flat.objective,
        Status.OPTIMAL if proven else Status.FEASIBLE,
        order,
        timeline,
        min(bound, timeline.value(flat.objective)),
        seconds,
        hit,
        search.found_by,
    )
