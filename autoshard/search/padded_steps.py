"""The prices of padded steps, as notes of a plan (`autoshard.search.padding`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autoshard.interrupts import acknowledge
from autoshard.machine.machine import Machine
from autoshard.plan.evaluate import evaluate
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.assemble import forecasted
from autoshard.search.memory_loop import explore_fitting
from autoshard.search.options import SearchOptions
from autoshard.search.padding import Padding, hindered, padded, sentence, unpriced
from autoshard.search.prepare import prepare
from autoshard.solve.limit_hit import LimitHit

WORTH_PADDING = 0.1
"""A padding is offered if it saves at least this share of the step."""
PADDING_SHARE, PADDING_GAP = 0.15, 0.02
"""The search for a padded step has this share of the time limit, and stops within this gap."""


def without_their_time(asked: SearchOptions, tried: Sequence[Padding]) -> SearchOptions:
    """The options of a search that leaves time for the prices of paddings."""
    return replace(asked, time_limit=(1 - PADDING_SHARE * len(tried)) * asked.time_limit)


def with_notes(
    program: Program,
    machine: Machine,
    plans: list[Plan],
    asked: SearchOptions,
    tried: Sequence[Padding],
) -> list[Plan]:
    """Plans with a note for each padding that saves at least `WORTH_PADDING` of the first's step.

    Paddings that cannot be priced are named, and all of them in a search without baselines. An
    interrupt leaves the notes out.
    """
    plans = with_sentences(plans, hindered(program, machine.chips))
    if not asked.baselines:
        return with_sentences(plans, unpriced(program, machine.chips, "--no-baselines"))
    if not tried or plans[0].proof.limit_hit is LimitHit.INTERRUPTED:
        return plans
    try:
        notes = tuple(_notes(program, machine, plans[0], asked, tried))
    except KeyboardInterrupt as interrupt:
        acknowledge(interrupt)
        return plans
    return with_sentences(plans, notes)


def with_sentences(plans: Sequence[Plan], sentences: Sequence[str]) -> list[Plan]:
    """Plans with these notes behind their own."""
    return [replace(plan, notes=(*plan.notes, *sentences)) for plan in plans]


def _notes(
    program: Program, machine: Machine, plan: Plan, asked: SearchOptions, tried: Sequence[Padding]
) -> Iterator[str]:
    now = plan.estimate.step_seconds
    for padding in tried:
        less = replace(
            asked,
            time_limit=PADDING_SHARE * asked.time_limit,
            gap=max(asked.gap, PADDING_GAP),
            progress=None,
            start=plan,
            known_bound=0.0,
            count=1,
        )
        try:
            again, shapes = prepare(padded(program, padding), machine, less)
            best = explore_fitting(again, shapes)
        except (InfeasibleError, NoPlanError):
            continue
        prices = again.prices(best.shape.sizes)
        plain = evaluate(prices, best.decisions, best.shape.names)
        took = forecasted(prices, best.decisions, plain).estimate.step_seconds
        worth, bound = (1 - WORTH_PADDING) * now, min(bound for _, bound, _ in best.table)
        if took < worth:
            yield sentence(program, padding, now, took)
        elif best.limit_hit is LimitHit.TIME and bound < worth:
            yield sentence(program, padding, now, bound, proven=False)
