"""A search with the share of collectives that the compiler's own schedule of its plan waits for.

A machine says which share of a collective is hidden that can run beside compute. It is the same for
all plans, and no plan hides more than it computes: one that gathers for longer than it computes
waits for the difference. If the compiler's schedule of the plan that is found is far from the sum
of its prices, the share that it waits for is taken for all plans, and the search begins again:

    share = (waited - always) / hideable        seconds of the plan that was found

The plan that is fastest in the compiler's schedule is taken. Its prices, proof and bound are those
of its own search.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from autoshard.interrupts import acknowledge
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.flags import flags_notes_of_another
from autoshard.search.options import SearchOptions
from autoshard.search.scheduled.near import beyond_prices, scheduled_faster
from autoshard.solve.limit_hit import LimitHit
from autoshard.units import format_percent

Find = Callable[[SearchOptions], list[Plan]]
LATER = 0.35
"""The fraction of the time that is left for the second search, where the compiler schedules."""
FAR = 0.05
"""By more than this fraction of the step the schedule differs from the sum of prices."""


def searched_again(
    find: Find, program: Program, machine: Machine, asked: SearchOptions
) -> list[Plan]:
    """Return the plans of a search, or of another one if its first plan is scheduled faster.

    Args:
      find: searches for plans of the program, under options.
      program: the program.
      machine: the machine.
      asked: the options.

    Raises:
      what `find` raises of the first search.
    """
    if not _schedules(machine, asked):
        return find(asked)
    started = time.monotonic()
    first = find(replace(asked, time_limit=(1 - LATER) * asked.time_limit))
    left = asked.time_limit - (time.monotonic() - started)
    now = replace(asked, start=first[0], time_limit=left)
    return faster_at_its_share(find, first[0], program, machine, now) or first


def faster_at_its_share(
    find: Find, plan: Plan, program: Program, machine: Machine, asked: SearchOptions
) -> list[Plan]:
    """Return what a search finds at the share that the schedule of a plan waits for.

    It is empty if nothing is found that is scheduled faster.

    Args:
      find: searches for plans of the program, under options.
      plan: what an earlier search of it found.
      program: the program.
      machine: the machine.
      asked: the options, with the time that is left.
    """
    again = at_its_share(plan, machine, asked)
    try:
        found = [] if again is None else find(again)
        if not found or not scheduled_faster(found[0], plan):
            return []
        notes = [_note(found[0])]
        if asked.baselines:
            notes += flags_notes_of_another(plan, found[0], program, machine)
    except (InfeasibleError, NoPlanError):
        return []
    except KeyboardInterrupt as interrupt:
        acknowledge(interrupt)
        return []
    return [replace(one, notes=tuple(dict.fromkeys((*one.notes, *notes)))) for one in found]


def at_its_share(plan: Plan, machine: Machine, asked: SearchOptions) -> SearchOptions | None:
    """The options of a search at the share that the schedule of a plan waits for.

    None if there is none, or no time.

    Args:
      plan: what an earlier search found.
      machine: the machine.
      asked: the options, with the time that is left.
    """
    over = asked.time_limit <= 0 or plan.proof.limit_hit is LimitHit.INTERRUPTED
    share = None if over or not _schedules(machine, asked) else waited_share(plan)
    if share is None:
        return None
    known = replace(asked.corrections, hidden=share)
    return replace(asked, corrections=known, known_bound=0.0)  # which was proven at other prices


def bound_at(share: float | None, bound: float, ideal: float, machine: Machine) -> float:
    """What a bound that holds at a machine's own prices is worth where a share is waited for.

    A plan costs `compute + share * collectives` at least.

    Args:
      share: that is waited for of what can run beside compute; None for the machine's own.
      bound: seconds, at the machine's own.
      ideal: seconds of the kernels alone.
      machine: the machine.
    """
    own = 1.0 - machine.overlap
    return bound if share is None or share >= own else max(ideal, bound * share / own)


def _note(plan: Plan) -> str:
    share = format_percent(plan.corrections.hidden or 0.0)
    return (
        f"priced with {share} of the collectives waited for that can run beside compute, as the "
        "compiler's schedule of an earlier plan waits for them"
    )


def _schedules(machine: Machine, asked: SearchOptions) -> bool:
    """Whether a compiler's schedules say what is hidden, and no compiled plan has yet."""
    asks = asked.by_schedule and asked.corrections.hidden is None
    return asks and machine.chip.compiler.hides_collectives


def waited_share(plan: Plan) -> float | None:
    """The share of what can run beside compute that the compiler's schedule of a plan waits for.

    None if it has none, or if its seconds are about the sum of prices.
    """
    estimate, prices = plan.estimate, plan.corrections
    if estimate.scheduled_seconds in (None, estimate.upper_seconds):
        return None  # beyond the memory nothing is hidden: a share says nothing of other plans
    if abs(beyond_prices(estimate)) <= FAR * estimate.step_seconds:
        return None
    able = [one for one in plan.moves if one.exposed_seconds < prices.waited * one.seconds]
    able = [one for one in able if one.kind != "collective_permute"]  # inside of ops
    hideable = sum(one.seconds for one in able)
    if not hideable:
        return None
    priced = estimate.step_seconds - estimate.compute_seconds
    always = priced - sum(one.exposed_seconds for one in able)
    waited = estimate.expected_seconds - estimate.compute_seconds
    return min(max((waited - always) / hideable, 0.0), 1.0)
