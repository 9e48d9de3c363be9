"""The whole question: a program, a machine with ranges, and what they mean for its plans."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard.cost.step_prices import step_prices
from autoshard.interrupts import acknowledge
from autoshard.machine.file import MachineError
from autoshard.machine.load import load
from autoshard.machine.machine import Machine, Range
from autoshard.machine.numbers import Number, number, ranges_of, with_numbers
from autoshard.plan.evaluate import evaluate
from autoshard.plan.fits import needed_bytes
from autoshard.plan.plan import Plan, Proof
from autoshard.plan.text.layouts import layouts_in_short
from autoshard.problem.requirements.records import Requirement
from autoshard.program.flops import is_matrix_op
from autoshard.program.trace import Program
from autoshard.search.assemble import assemble, forecasted
from autoshard.search.mesh_axes import coarsest_form
from autoshard.solve.limit_hit import LimitHit
from autoshard.study.robust.lines import Line, Side, line, search_together
from autoshard.study.robust.plans import Plans
from autoshard.study.robust.record import MemoryRow, NumberRow, PlanRow, Robust
from autoshard.study.robust.regret import Choice, Regret, least_regret
from autoshard.study.robust.scenarios import box_of, memory_of
from autoshard.xla import analyse

LINES_LEAVE = 0.25
"""What numbers one by one leave of the time for the plan of least regret."""
_TAKEN = 0
"""The number of the plan for the machine as it is taken: it is found first."""


def robust(
    program: Program,
    machine: Machine | str,
    *,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    spread: float = 0.0,
    tolerance: float = 0.01,
    mesh: Mapping[str, int | Sequence[int]] | None = None,
    memory_limit: float | None = None,
    time_limit: float = 300.0,
    search_limit: float = 60.0,
    options: Mapping[str, Any] | None = None,
    requirements: Sequence[Requirement | str] = (),
    progress: Callable[[str], None] | None = None,
) -> Robust:
    """Say where the plan for a machine stays best, what to measure, and which plan regrets least.

    Args:
      program: from `autoshard.trace`.
      machine: a `Machine`, the name of a preset, or the path of a TOML file, in which numbers may
        be ranges.
      ranges: (least, most) by path (`autoshard.machine.numbers`), beside those of the machine.
      spread: a range of this share to both sides for every rate, time and share without one.
      tolerance: a plan counts as better where it is cheaper by this share of a step.
      mesh: axis names and sizes; without it, mesh shapes are searched.
      memory_limit: bytes per device; by default what the chip has less its reserve, with the least
        memory that ranges allow for plans.
      time_limit: seconds for all of it. When it ends, what is known is returned with its bounds.
      search_limit: seconds for one search.
      options: kept in the plan.
      requirements: records or statements (`autoshard.problem.requirements`) that every plan keeps,
        whatever the machine proves to be; limits on collectives count those that a plan has on the
        machine as it is taken.
      progress: called with what is being done. An interrupt (Ctrl-C) ends with what is known, once
        there is a plan.

    Raises:
      MachineError: ranges are faulty, or there are none.
      RequirementError, InfeasibleError, NoPlanError: as `autoshard.search`, of the machine with the
        least memory.
    """
    started = time.monotonic()
    machine = load(machine) if isinstance(machine, str) else machine
    found = ranges_of(machine, ranges, spread=spread)
    idle = _idle(program, machine)
    found = tuple(one for one in found if one.path not in idle)
    if not found:
        raise MachineError(
            f"{machine.name} has no ranges; write `memory_bandwidth = [2.8e12, 3.4e12]` and its "
            "like into the machine's file, or ask for --range or --spread"
        )
    plans = _plans(program, machine, found, mesh, memory_limit, tolerance)
    plans.requirements = tuple(requirements)
    plans.until, plans.each = started + time_limit, search_limit
    plans.heard = progress or (lambda words: None)
    state = _State()
    limit_hit: LimitHit | None = None
    try:
        _answer(plans, tolerance, state)
    except KeyboardInterrupt as interrupt:
        acknowledge(interrupt)
        if not plans.known:
            raise
        limit_hit = LimitHit.INTERRUPTED
    if limit_hit is None and not plans.may_search():
        limit_hit = LimitHit.TIME
    return _record(plans, state, machine, found, tolerance, limit_hit, started, options)


def _idle(program: Program, machine: Machine) -> set[str]:
    """Paths of rates that no op of the program asks for: those of other dtypes."""
    chip = machine.chip
    used = {
        chip.rate_key(program.values[value].dtype)
        for op in program.ops
        if is_matrix_op(op.primitive)
        for value in (*op.inputs, *op.outputs)
        if value >= 0
    }
    return {f"chip.peak_flops.{dtype}" for dtype in chip.peak_flops if dtype not in used}


@dataclass(slots=True)
class _State:
    """What is known so far."""

    lines: dict[int, Line] = field(default_factory=dict)
    choice: Choice | None = None
    regrets: dict[int, Regret] = field(default_factory=dict)


def _plans(
    program: Program,
    machine: Machine,
    ranges: Sequence[Range],
    mesh: Mapping[str, int | Sequence[int]] | None,
    memory_limit: float | None,
    tolerance: float,
) -> Plans:
    tight, loose = memory_of(machine, ranges)
    given = memory_limit is not None
    return Plans(
        program,
        analyse(program, machine.chip),
        box_of(tight, ranges),
        loose,
        mesh,
        limit=memory_limit if given else tight.chip.usable_bytes,
        loose_limit=memory_limit if given else loose.chip.usable_bytes,
        gap=tolerance / 2,
    )


def _answer(plans: Plans, tolerance: float, state: _State) -> None:
    axes = plans.box.axes
    plans.heard("the machine as it is taken")
    first = plans.solve(plans.box.taken)
    assert first is not None

    def leverage(axis: int) -> float:
        ends = (plans.box.along(axis, cost) for cost in (axes[axis].slow, axes[axis].fast))
        slow, fast = (plans.seconds(point, first) for point in ends)
        return slow - fast

    # What matters most comes first, and what is over at half of the time is left open.
    until, plans.until = plans.until, plans.until - LINES_LEAVE * plans.left()
    search_together(plans, first, tolerance)
    for done, axis in enumerate(sorted(range(len(axes)), key=leverage, reverse=True)):
        plans.heard(f"{axes[axis].number.name}, {done + 1} of {len(axes)}")
        state.lines[axis] = line(plans, axis, first, tolerance)
    plans.until = until
    plans.heard("the plan of least regret")
    state.choice, state.regrets = least_regret(plans, first, tolerance)


def _record(
    plans: Plans,
    state: _State,
    machine: Machine,
    ranges: Sequence[Range],
    tolerance: float,
    limit_hit: LimitHit | None,
    started: float,
    options: Mapping[str, Any] | None,
) -> Robust:
    least = _TAKEN if state.choice is None else state.choice.plan
    seconds = time.monotonic() - started
    made = [
        _plan(plans, plan, machine, options, seconds, limit_hit) for plan in range(len(plans.known))
    ]
    rows = [
        _plan_row(plans, number_, plan, state.regrets.get(number_))
        for number_, plan in enumerate(made)
    ]
    names = [f"{row.mesh}: {row.layouts}" for row in rows]
    return Robust(
        program=plans.program.name,
        machine=machine.name,
        tolerance=tolerance,
        numbers=tuple(_number_row(plans, k, one, names) for k, one in sorted(state.lines.items())),
        memory=tuple(
            _memory_row(plans, number(machine, one.path), one)
            for one in ranges
            if number(machine, one.path).of_memory
        ),
        plans=tuple(rows),
        taken=_TAKEN,
        least=least,
        least_bound=0.0 if state.choice is None else state.choice.least,
        sag=plans.box.sag,
        searches=plans.searches,
        seconds=seconds,
        limit_hit=limit_hit,
        plan=made[least],
    )


def _number_row(plans: Plans, position: int, one: Line, names: Sequence[str]) -> NumberRow:
    axis = one.axis

    def then(side: Side) -> str | None:
        return None if side.successor is None else names[side.successor]

    sides = (one.low, one.high)
    worse = max(sides, key=lambda side: (side.saved, side.most_saved))
    return NumberRow(
        path=axis.number.path,
        name=axis.number.name,
        taken=axis.number.value,
        low=axis.low,
        high=axis.high,
        proven_low=one.low.proven,
        proven_high=one.high.proven,
        within=max(side.within for side in sides),
        lost_low=one.low.lost,
        lost_high=one.high.lost,
        then_low=then(one.low),
        then_high=then(one.high),
        saved=worse.saved,
        most_saved=worse.most_saved,
        regret_if_known=_regret_if_known(plans, position),
    )


def _regret_if_known(plans: Plans, position: int) -> float:
    """The least regret that is left where one number is known before the plan is chosen.

    Of known plans on machines that were searched, with that number at either end.
    """
    axis = plans.box.axes[position]
    worst = 1.0
    for cost in (axis.fast, axis.slow):
        points = [point for point in plans.bounds if point[position] == cost]
        behind = [
            max((plans.behind(point, plan) for point in points), default=1.0)
            for plan in range(len(plans.known))
        ]
        worst = max(worst, min(behind))
    return worst - 1


def _memory_row(plans: Plans, known: Number, one: Range) -> MemoryRow:
    """Up to where the plan fits, if the other numbers of memory are at their worst.

    The peak is affine in the overhead of the heap.
    """
    peak = _peak(plans, one.path, known.value)
    chip = plans.box.machine.chip
    if known.path == "chip.memory_bytes":
        fits_to = chip.reserve_bytes + peak
    elif known.path == "chip.reserve_bytes":
        fits_to = chip.memory_bytes - peak
    else:
        more = _peak(plans, one.path, one.high) - _peak(plans, one.path, one.low)
        room = chip.usable_bytes - peak
        fits_to = known.value + room * (one.high - one.low) / more if more else one.high
    return MemoryRow(one.path, known.name, known.value, one.low, one.high, fits_to)


def _peak(plans: Plans, path: str, value: float) -> int:
    """Peak bytes of the plan for the machine as it is taken, with another number of memory."""
    one = plans.known[_TAKEN]
    machine = with_numbers(plans.box.machine, {path: value})
    prices = step_prices(plans.program, plans.flow, machine, one.shape.sizes)
    plain = evaluate(prices, one.decisions, one.shape.names)
    return needed_bytes(forecasted(prices, one.decisions, plain).estimate)


def _plan_row(plans: Plans, number_: int, plan: Plan, regret: Regret | None) -> PlanRow:
    box = plans.box
    worst = max(plans.bounds, key=lambda point: plans.behind(point, number_))
    if regret is not None:
        worst = regret.worst
    return PlanRow(
        mesh=str(plan.mesh),
        layouts=layouts_in_short(plan, plans.program),
        step_seconds=plans.seconds(box.taken, number_),
        best_seconds=plans.seconds(box.fast, number_),
        worst_seconds=plans.seconds(box.slow, number_),
        peak_bytes=plans.evaluation(box.taken, number_).estimate.peak_bytes,
        known=plans.behind(worst, number_) - 1,
        most=None if regret is None else regret.most,
        anywhere=None if regret is None else regret.anywhere,
        worst_at={
            axis.number.path: axis.number.at_cost(cost)
            for axis, cost in zip(box.axes, worst, strict=True)
        },
    )


def _plan(
    plans: Plans,
    number_: int,
    machine: Machine,
    options: Mapping[str, Any] | None,
    answered_in: float,
    limit_hit: LimitHit | None,
) -> Plan:
    """A plan on the machine as it is taken, with what is proven of it there."""
    box, one = plans.box, plans.known[number_]
    prices = step_prices(plans.program, plans.flow, machine, one.shape.sizes)
    plain = evaluate(prices, one.decisions, one.shape.names)
    evaluation = forecasted(prices, one.decisions, plain)
    decisions, shape = one.decisions, one.shape
    if plans.mesh is None:
        merged = coarsest_form(plans.program, machine, prices, decisions, shape, evaluation)
        paid = forecasted(merged[2], merged[0], merged[3])
        if plans.demands.allows(paid, merged[0], merged[1]):
            decisions, shape, prices, _ = merged
            evaluation = paid
    seconds = evaluation.estimate.step_seconds + plans.dues(number_)
    bound = min(plans.least(box.taken), seconds)
    gap = 1 - bound / seconds if seconds > 0 else 0.0
    proven = gap <= 1e-8
    status, ended = ("optimal", None) if proven else ("feasible", LimitHit.GAP)
    if gap > plans.gap and limit_hit is not None:
        ended = limit_hit
    proof = Proof(status, seconds, bound, gap, answered_in, ended)
    return assemble(
        prices,
        decisions,
        shape,
        evaluation,
        proof=proof,
        memory_limit=plans.demands.limit(plans.limit),
        options=options,
        requirements=plans.demands.verdicts(evaluation, decisions, shape),
    )
