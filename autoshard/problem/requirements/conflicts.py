"""Requirements that cannot hold together: the smallest such set, and the least that repairs it.

Every requirement has a hub in one problem (`autoshard.problem.requirements.restrict.relaxable`), so
that any set of them can be switched on by pins, and each check is a solve that ends with a plan or
with a proof. A set is **minimal** when it has no plan and each of its proper subsets has one.
QuickXplain (Junker 2004, https://cdn.aaai.org/AAAI/2004/AAAI04-027.pdf) finds one with few checks.

Three repairs are worked out, all other requirements kept:

    drop one       what the best step costs without it
    raise a limit  for a limit in the set, the least value under which there is a plan
    drop several   where no single one helps, as few as do
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.plan.plan import MeshShape
from autoshard.problem.build import Built
from autoshard.problem.requirements.bind import Bound
from autoshard.problem.requirements.collective_rows import collective_amounts
from autoshard.problem.requirements.records import CollectiveLimit, MemoryLimit
from autoshard.problem.requirements.restrict import relaxable
from autoshard.solve import Node, Outcome, Problem, Status, evaluate
from autoshard.solve.pipeline import solve
from autoshard.units import format_bytes, format_seconds

ANY_GAP = 1e9
CLOSE = 1e-3
"""The least memory limit is found to within this part of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Repair:
    """Something that makes a plan possible.

    Attributes:
      dropped: the requirements to drop; of a limit that is raised, that limit.
      step_seconds: of the best plan found then; None where none was looked for.
      least: the value to which a limit is to be raised (bytes or a count), or None.
    """

    dropped: tuple[Bound, ...]
    step_seconds: float | None = None
    least: float | None = None

    def __str__(self) -> str:
        (first, *others) = self.dropped
        if self.least is not None:
            value = f"{self.least:.0f}"
            if isinstance(first.requirement, MemoryLimit):
                value = format_bytes(self.least)
                exact = f" ({math.ceil(self.least)} bytes)"
                value += exact
            elif getattr(first.requirement, "bytes", None) is not None:
                value += " bytes"
            return f"raise `{first}` to {value}"
        text = f"drop `{first}`" + "".join(f" and `{other}`" for other in others)
        if self.step_seconds is None:
            return text
        return f"{text}: the step takes {format_seconds(self.step_seconds)} then"


@dataclass(frozen=True, slots=True, eq=False)
class Conflict:
    """Requirements without a plan.

    Attributes:
      members: they cannot hold together; any of them less, and they can.
      repairs: what would make all the others hold.
      proven: whether every check ended; else the set may be larger than it must be.
    """

    members: tuple[Bound, ...]
    repairs: tuple[Repair, ...]
    proven: bool

    def __str__(self) -> str:
        alone = len(self.members) == 1
        lines = ["this cannot be kept:" if alone else "these cannot be kept together:"]
        lines += [f"  - {bound}" for bound in self.members]
        if not self.proven:
            lines.append("  (the time did not suffice to see whether fewer of them conflict)")
        if self.repairs:
            lines.append("to repair it:" if len(self.repairs) == 1 else "any of these repairs it:")
            lines += [f"  - {repair}" for repair in self.repairs]
        return "\n".join(lines)


def find_conflict(
    built: Built, bounds: Sequence[Bound], mesh: MeshShape, *, time_limit: float = 60.0
) -> Conflict | None:
    """The smallest set of requirements that has no plan, or None where all of them have one.

    Args:
      built: the problem without requirements; its memory limit is not looked at.
      bounds: the requirements, a memory limit among them where there is one.
      mesh: axis names and sizes.
      time_limit: seconds for all checks; the set is found first, then the repairs.
    """
    judge = _Judge(built, tuple(bounds), mesh, time.monotonic() + time_limit)
    everything = list(range(len(bounds)))
    if judge.holds(everything):
        return None
    members = [] if not judge.holds([]) else minimal_conflict(everything, judge.holds)
    repairs = judge.repairs(members)
    return Conflict(tuple(bounds[k] for k in sorted(members)), tuple(repairs), judge.proven)


def minimal_conflict(items: Sequence[int], holds: Callable[[Sequence[int]], bool]) -> list[int]:
    """Some of the items that do not hold together, although any fewer of them do.

    Args:
      items: which do not hold together.
      holds: whether some of them do; with more items it never turns from false to true. Nothing
        holds for no items at all.
    """

    def inside(background: list[int], added: bool, left: list[int]) -> list[int]:
        if added and not holds(background):
            return []
        if len(left) == 1:
            return left
        half = len(left) // 2
        first, second = left[:half], left[half:]
        in_second = inside([*background, *first], True, second)
        in_first = inside([*background, *in_second], bool(in_second), first)
        return [*in_first, *in_second]

    return inside([], False, list(items))


class _Judge:
    """Checks sets of requirements on one problem; plans that were met answer for free."""

    def __init__(
        self, built: Built, bounds: tuple[Bound, ...], mesh: MeshShape, stop: float
    ) -> None:
        self.built, self.bounds, self.mesh, self.stop = built, bounds, mesh, stop
        self.proven = True
        self.whole = relaxable(built, bounds, mesh)
        self.hubs = {
            next(k for k, bound in enumerate(bounds) if bound is hub.bound): hub
            for hub in self.whole.hubs
            if not hub.name
        }
        self.kept_by_plan: list[set[int]] = []

    def holds(self, items: Sequence[int]) -> bool:
        """Whether there is a plan that keeps these requirements."""
        if any(set(items) <= kept for kept in self.kept_by_plan):
            return True
        outcome = self._solve(self.whole.problem, set(items), gap=ANY_GAP)
        if outcome.solution is None:
            if outcome.status is not Status.INFEASIBLE:
                self.proven = False
                return True  # it stays in the set, which is then perhaps too large
            return False
        self.kept_by_plan.append(self._kept(outcome.solution.choices))
        return True

    def repairs(self, members: Sequence[int]) -> list[Repair]:
        """What makes all other requirements hold."""
        found: list[Repair] = []
        everything = set(range(len(self.bounds)))
        for member in members:
            rest = everything - {member}
            if not self.holds(sorted(rest)):
                continue
            bound = self.bounds[member]
            if isinstance(bound.requirement, MemoryLimit | CollectiveLimit):
                least = self._least(member, rest)
                if least is not None:
                    found.append(Repair((bound,), least=least))
                    continue
            outcome = self._solve(self.whole.problem, rest, gap=0.01)
            seconds = None if outcome.solution is None else outcome.report.objective
            found.append(Repair((bound,), seconds))
        if not found and members:
            few = self._fewest()
            if few:
                found.append(Repair(tuple(self.bounds[k] for k in few)))
        return found

    def _solve(self, problem: Problem, kept: set[int], *, gap: float) -> Outcome:
        pins = {
            hub.node: hub.kept if number in kept else (hub.dropped,)
            for number, hub in self.hubs.items()
            if hub.dropped is not None
        }
        left = max(self.stop - time.monotonic(), 0.0)
        return solve(problem, time_limit=max(0.3 * left, 2.0), gap=gap, pins=pins)

    def _kept(self, choices: Sequence[int]) -> set[int]:
        return {k for k, hub in self.hubs.items() if choices[hub.node] != hub.dropped}

    def _fewest(self) -> list[int]:
        """As few requirements as possible whose absence gives a plan."""
        dropped = {hub.node: hub.dropped for hub in self.hubs.values()}
        nodes = []
        for number, node in enumerate(self.whole.problem.nodes):
            costs = np.zeros(node.costs.size)
            if dropped.get(number) is not None:
                costs[dropped[number]] = 1.0
            nodes.append(Node(node.name, costs))
        counted = replace(self.whole.problem, nodes=tuple(nodes), offset=0.0)
        left = max(self.stop - time.monotonic(), 2.0)
        outcome = solve(counted, time_limit=0.5 * left, gap=0.0)
        if outcome.solution is None:
            return []
        return sorted(set(range(len(self.bounds))) - self._kept(outcome.solution.choices))

    def _least(self, member: int, rest: set[int]) -> float | None:
        """The least value of a limit under which all the others have a plan."""
        requirement = self.bounds[member].requirement
        if isinstance(requirement, CollectiveLimit):
            amounts = collective_amounts(self.whole, requirement, self.mesh.names)
            nodes = tuple(
                Node(node.name, amounts.get(number, np.zeros(node.costs.size)))
                for number, node in enumerate(self.whole.problem.nodes)
            )
            counted = replace(self.whole.problem, nodes=nodes, offset=0.0)
            outcome = self._solve(counted, rest, gap=0.0)
            return None if outcome.solution is None else round(outcome.report.objective)
        assert isinstance(requirement, MemoryLimit)
        return self._least_memory(member, rest, requirement)

    def _least_memory(self, member: int, rest: set[int], limit: MemoryLimit) -> float | None:
        """Halve the range between a limit that fails and the peak of a plan that was found."""
        reserved = float(self.built.prices.program.constant_bytes)
        free = replace(self.built.problem, limit=None)
        count = len(free.nodes)
        outcome = self._solve(self.whole.problem, rest, gap=ANY_GAP)
        low, high = limit.bytes, math.inf
        problem = self.whole.problem
        while outcome.solution is not None:
            peak = evaluate(free, outcome.solution.choices[:count]).peak + reserved
            high = min(high, peak)
            if high <= low * (1 + CLOSE) or time.monotonic() > self.stop:
                break
            while high > low * (1 + CLOSE):
                middle = 0.5 * (low + high)
                problem = self._limited_to(member, middle)
                outcome = self._solve(problem, rest | {member}, gap=ANY_GAP)
                if outcome.solution is not None:
                    break
                low = middle
                if time.monotonic() > self.stop:
                    return high
            else:
                break
        return high if math.isfinite(high) else None

    def _limited_to(self, member: int, limit: float) -> Problem:
        """The problem with another value of a memory limit."""
        bounds = list(self.bounds)
        old = bounds[member]
        bounds[member] = replace(old, requirement=replace(old.requirement, bytes=limit))
        return relaxable(self.built, bounds, self.mesh).problem
