"""Explains why a value has its layout, and what any other layout would cost.

Every answer is a solve of the plan's own problem. The value is pinned to another layout, and
everything else is decided again, warm-started from the plan (`autoshard.solve.solve_again`). So a
price is that of the best plan with the other layout, not that of the old plan with one layout
changed. If the best plan itself is only known to within a gap, the solves stop once they have
proven the same gap.

The explanation also says where each axis of a layout comes from. Operations that shard one of their
factors over the axis connect the value with other values. If one of those is pinned, the axis comes
from that requirement. Otherwise the axis is there because of the operations that it shards, and the
most expensive one is named.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autoshard.cost.step_prices import StepPrices
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import Evaluation, evaluate, tidy
from autoshard.plan.plan import Plan, PlanError
from autoshard.plan.same_program import as_planned_for, for_program
from autoshard.plan.transfers import host_notes
from autoshard.problem.build import Built, build
from autoshard.problem.requirements.bind import Bound, shown_layout, shown_value
from autoshard.problem.requirements.demands import Demands, demands_of
from autoshard.problem.requirements.records import Requirement
from autoshard.problem.requirements.restrict import EmptyDomainError
from autoshard.problem.requirements.text import from_json
from autoshard.program.facts import Facts
from autoshard.program.layout import Layout
from autoshard.program.notes import kernels_around
from autoshard.program.repeats import find_repeats
from autoshard.program.select import find_values, group_path, shown_path
from autoshard.program.trace import Program
from autoshard.search.assemble import prices_of
from autoshard.search.closest import closest
from autoshard.search.explanation import Alternative, Difference, Explanation
from autoshard.search.provenance import origins
from autoshard.solve import Outcome, Status
from autoshard.solve.pipeline import solve
from autoshard.solve.sensitivity.about import SolvesAbout
from autoshard.solve.sensitivity.pinned import PinnedSolves
from autoshard.solve.whole import tightened
from autoshard.units import format_seconds
from autoshard.xla import analyse

SAME_PRICE = 1e-9
"""Prices count as those that the plan was made with, up to this relative difference."""


class _Space(NamedTuple):
    """The problem under some requirements, the plan as its choices, and pinned solves of it."""

    built: Built
    before: Sequence[int]
    solves: PinnedSolves


class Explainer:
    """Answers questions about one plan; the problem is built and solved once.

    Args:
      program, machine: the program and the machine of the plan.
      plan: the plan to explain.
      constraints: whether the program's own requirements count, as they did in the search.
      time_limit: seconds for the preparation.
      gap: the relative accuracy of every price, if the plan is proven to be within it.

    Raises:
      PlanError: the plan is not for this program, or not in its search space.
      RequirementError: the plan's requirements do not fit the program.
    """

    def __init__(
        self,
        program: Program,
        machine: Machine | str,
        plan: Plan,
        *,
        constraints: bool = True,
        time_limit: float = 60.0,
        gap: float = 0.0,
    ) -> None:
        machine = load(machine) if isinstance(machine, str) else machine
        plan, program = as_planned_for(plan, program)
        self.program, self.plan, self.gap = program, plan, gap
        asked = [from_json(one["requirement"]) for one in plan.requirements if "requirement" in one]
        own = constraints and any("requirement" not in one for one in plan.requirements)
        self._asked: list[Requirement] = asked
        self._as_searched = constraints or len(asked) == len(plan.requirements)
        self.demands = demands_of(program, asked, plan.mesh, constraints=own)
        self.flow = self._facts(analyse(program, machine.chip))
        self.prices: StepPrices = prices_of(plan, program, machine, analysed=self.flow)
        self._spaces: dict[frozenset[int], _Space] = {}
        self._about: dict[tuple[frozenset[int], int], SolvesAbout] = {}
        self.evaluation: Evaluation = evaluate(self.prices, plan.decisions, plan.mesh.names)
        self.built, _, solves = self._space(frozenset(), time_limit)
        self.outcome: Outcome = solves.outcome

    def explain(self, value: int, *, time_limit: float = 20.0) -> Explanation:
        """Return the explanation of a value's layout.

        Args:
          value: the value's number, as `autoshard.program.select.find_values` returns it.
          time_limit: seconds for all alternatives together.

        Raises:
          PlanError: the value has no layout, because it is computed wherever it is needed.
        """
        program, plan = self.program, self.plan
        layout = plan.decisions.stored[value]
        if layout is None:
            raise PlanError(
                f"{shown_value(program, value)} is computed wherever it is needed, and has no "
                "layout; ask for what it is made of, or for what reads it"
            )
        copy = plan.decisions.copy[value]
        number = int(self.built.classes.value_class[value])
        table = self.built.value_choices[number].table
        stop = time.monotonic() + time_limit
        found = []
        others = [other for other in table.layouts if other != layout]
        for k, other in enumerate(others):
            share = max(stop - time.monotonic(), 0.05) / (len(others) - k)
            found.append(self.price(value, other, time_limit=share))
        found.sort(key=lambda one: (one.step_seconds is None, one.step_seconds or 0.0))
        shown = [self._type(value, one) for one in (layout, copy) if one is not None]
        return Explanation(
            value=value,
            shown=shown_value(program, value),
            layouts=tuple(shown),
            origins=origins(self.prices, plan, value, self.demands.bounds),
            alternatives=tuple(found),
            requirements=tuple(self._requirements(value, max(stop - time.monotonic(), 1.0))),
            memory=self._memory(value),
            step_seconds=plan.estimate.step_seconds,
            peak_bytes=plan.estimate.peak_bytes,
            types=tuple(self._type(value, one.layout) for one in found),
            gap=self.outcome.report.gap,
            kernels=kernels_around(program, value),
            host=host_notes(self.prices, plan.decisions, value, plan.mesh.names),
        )

    def price(self, value: int, layout: Layout, *, time_limit: float = 20.0) -> Alternative:
        """Return the best plan in which a value is stored in a given layout.

        Requirements on the value that forbid the layout are dropped, and the note names them.
        """
        stop = time.monotonic() + time_limit
        against = self._against(value, layout)
        names = "; ".join(str(self.demands.bounds[k]) for k in sorted(against))
        note = f"without {names}" if names else ""
        built, before, solves = self._space(against, time_limit)
        number = int(built.classes.value_class[value])
        choices = built.value_choices[number]
        row = choices.table.rows.get(layout, -1)
        if row not in choices.stored:
            record = self.program.values[value]
            maker = "nothing" if record.producer < 0 else str(self.program.ops[record.producer])
            return Alternative(layout, None, None, np.inf, (), 0, f"{maker} leaves it so")
        key = against, number
        if key not in self._about:
            node = built.value_node[number]
            self._about = {key: SolvesAbout(solves, node, choices.stored, before)}
        left = max(stop - time.monotonic(), 0.5)
        gap = max(self.gap, solves.outcome.report.gap)
        outcome = self._about[key].solve(int(row), time_limit=left, gap=gap)
        bound = outcome.report.bound
        if outcome.solution is None:
            infeasible = outcome.status is Status.INFEASIBLE
            why = "no plan" if infeasible else "no plan was found in time"
            return Alternative(layout, None, None, bound, (), 0, f"{why} {note}".strip())
        decisions = tidy(self.prices, built.decode(self._closest(built, before, outcome, value)))
        found = evaluate(self.prices, decisions, self.plan.mesh.names).estimate
        changes, others = self.differences(decisions)
        seconds, size = found.step_seconds, found.peak_bytes
        return Alternative(layout, seconds, size, bound, changes, others, note, decisions)

    def against(self, other: Plan, values: Sequence[int] = ()) -> Difference:
        """Return how another plan of the program on the same mesh differs.

        Args:
          other: the other plan.
          values: the values to price, each alone in its layout of the other plan, with all else
            decided again; by default all inputs that differ.

        Raises:
          PlanError: the plan is for another program or mesh.
        """
        other = for_program(other, self.program)
        if other.mesh != self.plan.mesh:
            raise PlanError(
                f"the plans are on different meshes: {self.plan.mesh} and {other.mesh}; search for "
                "one of them with the --mesh of the other, or see both by `autoshard report A B`"
            )
        there = evaluate(self.prices, other.decisions, self.plan.mesh.names).estimate
        mine = self.plan.estimate
        changes, others = self.differences(other.decisions)
        old, new = self.plan.decisions.stored, other.decisions.stored
        alone = []
        for value in values or self.program.inputs:
            layout = new[value]
            if layout is not None and layout != old[value]:
                shown = f"{shown_value(self.program, value)} as {self._type(value, layout)}"
                alone.append((shown, self.price(value, layout)))
        return Difference(
            seconds=(mine.step_seconds, there.step_seconds),
            bytes=(mine.peak_bytes, there.peak_bytes),
            changes=changes,
            others=others,
            alone=tuple(alone),
        )

    def differences(self, decisions: Decisions) -> tuple[tuple[str, ...], int]:
        """Return the inputs and results whose layouts differ from the plan's.

        The second item is how many other values differ.
        """
        before, program = self.plan.decisions, self.program
        ends = dict.fromkeys((*program.inputs, *program.outputs))
        texts: dict[str, str] = {}
        others = 0
        for value in program.values:
            old, new = before.stored[value.index], decisions.stored[value.index]
            if old is None or new is None or old == new:
                continue
            if value.index not in ends:
                others += 1
                continue
            side = "input" if value.index in program.inputs else "result"
            key = f"{side} {group_path('[0]' + value.path)} {value}"
            arrow = f"{self._type(value.index, old)} -> {self._type(value.index, new)}"
            texts.setdefault(key, f"{shown_path(program, value.index)}: {arrow}")
        return tuple(texts.values()), others

    # -- what binds ------------------------------------------------------------------------------

    def _prepare(self, demands: Demands, bound: float, time_limit: float) -> _Space:
        started = time.monotonic()
        classes = find_repeats(self.program, marks=demands.marks())
        join_sums = bool(self.plan.options.get("join_sums", True))
        built = build(self.prices, classes, limit=self.plan.memory_limit, join_sums=join_sums)
        try:
            built = demands.applied(built, seconds=0.3 * time_limit)
        except EmptyDomainError as error:
            raise PlanError(
                f"the plan's requirements leave nothing: {error}; search again"
            ) from error
        known = built.encode(self.plan.decisions)
        if known is None:
            raise PlanError("the plan is not in the space of the search: search again")
        left = max(time_limit - (time.monotonic() - started), 1.0)
        outcome = solve(
            built.problem, time_limit=left, gap=self.gap, warm_start=[known], known_bound=bound
        )
        outcome = tightened(built.problem, outcome)
        return _Space(built, known, PinnedSolves.of(built.problem, outcome).ready())

    def _requirements(self, value: int, seconds: float) -> list[tuple[str, float]]:
        """Return the requirements on a value, each with the seconds that dropping it saves."""
        number = int(self.built.classes.value_class[value])
        members = set(self.built.classes.value_members[number])
        ours = [bound for bound in self.demands.bounds if members & set(bound.values)]
        return [(str(one), self._saved(one, seconds / max(len(ours), 1))) for one in ours]

    def _facts(self, flow: Facts) -> Facts:
        """Return the facts under which the plan was found: kernels cut where it copies values."""
        narrow = self.demands.facts(flow)
        copied = [v for v, copy in enumerate(self.plan.decisions.copy) if copy is not None]
        if all(narrow.can_be_copied(self.program, value) for value in copied):
            return narrow
        return self.demands.facts(flow, everywhere=True)

    def _closest(
        self, built: Built, before: Sequence[int], outcome: Outcome, value: int
    ) -> Sequence[int]:
        """Return the outcome's plan with only as many changes to the plan as its price needs."""
        assert outcome.solution is not None
        members = built.classes.value_members
        weights = {node: float(len(members[number])) for number, node in built.value_node.items()}
        return closest(
            built.problem,
            before,
            outcome.solution.choices,
            weights,
            price=outcome.report.objective,
            kept=frozenset([built.value_node[int(built.classes.value_class[value])]]),
        )

    def _saved(self, bound: Bound, seconds: float) -> float:
        number = self.demands.bounds.index(bound)
        less = self._space(frozenset([number]), seconds).solves.outcome
        return max(self.outcome.report.objective - less.report.objective, 0.0)

    def _space(self, without: frozenset[int], seconds: float) -> _Space:
        """Return the problem without some of the requirements; it is built and solved once."""
        if without not in self._spaces:
            left = tuple(b for k, b in enumerate(self.demands.bounds) if k not in without)
            demands = Demands(self.program, left, self.demands.names)
            bound = -np.inf if without else self._known_bound()
            self._spaces[without] = self._prepare(demands, bound, seconds)
        return self._spaces[without]

    def _known_bound(self) -> float:
        """Return the bound of the plan's proof if prices and requirements match, else -inf."""
        now, then = self.evaluation.estimate.step_seconds, self.plan.proof.objective
        alike = abs(now - then) <= SAME_PRICE * abs(then) and self._as_searched
        return self.plan.proof.bound if alike else -np.inf

    def _against(self, value: int, layout: Layout) -> frozenset[int]:
        """Return the numbers of the requirements that forbid a layout of a value."""
        found = set()
        names, sizes = self.plan.mesh.names, self.prices.mesh_shape
        for number, bound in enumerate(self.demands.bounds):
            for patterns, forbidden in ((bound.pins, False), (bound.forbids, True)):
                for one, pattern in patterns:
                    inside = bool(pattern.mask(np.array([layout]), names, sizes)[0])
                    if one == value and inside == forbidden and bound.requirement.hard:
                        found.add(number)
        return frozenset(found)

    def _memory(self, value: int) -> str:
        """Return a text on the most expensive memory row in the value's lifetime, to first order.

        It is empty if memory does not bind then.
        """
        prices = self.outcome.report.prices
        if not prices:
            return ""
        start, stop = self.flow.start[value], self.flow.stop[value]
        here = [(price, when) for when, price in prices if start <= when < stop]
        if not here:
            return ""
        price, when = max(here)
        ops = self.program.ops
        place = str(ops[when]) if when < len(ops) else "the end of the step"
        gain = format_seconds(price * 2**30)
        return f"memory binds at {place}: a GiB more there saves up to {gain} a step"

    def _type(self, value: int, layout: Layout) -> str:
        return shown_layout(self.program, value, layout, self.plan.mesh)


def values_to_explain(program: Program, plan: Plan, target: str) -> Sequence[int]:
    """Return the values of a target, with those that have the same layout in every layer once.

    Raises:
      RequirementError: the target names nothing.
    """
    seen: dict[object, int] = {}
    for value in find_values(program, target):
        record = program.values[value]
        path = group_path("[0]" + record.path) if record.path else ""
        scope = program.ops[record.producer].line if record.producer >= 0 else ""
        key = (path, scope, str(record), plan.decisions.stored[value], plan.decisions.copy[value])
        seen.setdefault(key, value)
    return list(seen.values())
