"""The fewest lines with which Shardy's own propagation makes the plan.

`autoshard.lower` constrains every value. With the shardings of the inputs and results given, most
of that follows by propagation, and few `with_sharding_constraint`s remain to be written into the
user's own code (`autoshard.lower.sites`). A line there constrains what is computed again and the
cotangent too, because it is differentiated with the rest.

A set of lines is held to the plan by running Shardy's passes (`autoshard.lower.line_checks`). Lines
are added one by one: of those about the places where something is otherwise than planned, the one
that leaves the least mismatch; where none helps, two at a time. At the end what can be left out is,
and the set is checked once more in a step that is traced with these lines alone. Of the lines that
remain none can be left out, although another set might be smaller still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import Mesh

from autoshard.assemble import priced_anew, prices_of
from autoshard.lower.compare import Tally
from autoshard.lower.line_checks import LineChecks, Mismatch
from autoshard.lower.sites import Line, Sites, sites_of
from autoshard.lower.source_lines import ONE_WAY
from autoshard.lower.spmd import Lowered, lower
from autoshard.machine import Machine, load
from autoshard.plan import Plan
from autoshard.program import Program
from autoshard.sums import settled
from autoshard.units import format_bytes

BREADTH = 24
"""So many lines are tried at a time."""
NEAR = 8
"""So many of the lines about what differs most are tried in pairs with others."""
Chosen = frozenset[Line]


@dataclass(frozen=True, slots=True, eq=False)
class Fewest:
    """What `fewest` found.

    Attributes:
      lines: of which none can be left out.
      lowered: the step with these lines alone; it makes the planned collectives.
      of: how many lines could be written in all.
      checks: how often Shardy's passes were run.
      left: collectives that are made otherwise than planned, where no set of lines makes the plan.
      products: how many matrix products are cut otherwise then.
    """

    lines: tuple[Line, ...]
    lowered: Lowered
    of: int
    checks: int = 0
    left: tuple[Tally, ...] = ()
    products: int = 0

    @property
    def enough(self) -> bool:
        """Whether the lines make the plan."""
        return not self.left and not self.products

    @property
    def per_block(self) -> int:
        """How many of the lines are in repeated blocks, once for all repetitions."""
        return sum(line.block for line in self.lines)

    def __str__(self) -> str:
        if not self.lines and self.enough:
            return "the shardings of inputs and results are enough"
        inside = f" ({self.per_block} in repeated blocks)" if self.per_block else ""
        text = [
            f"{len(self.lines)} of {self.of} lines{inside}, beside the shardings of inputs and "
            "results:",
            *(f"  {line}" for line in self.lines),
        ]
        if any(one.one_way for line in self.lines for one in line.says):
            text += ["where", *(f"  {line}" for line in ONE_WAY.splitlines())]
        if not self.enough:
            text.append("No more lines were found that help. Otherwise than planned are then:")
            text += [
                f"  {one.kind} over {','.join(one.axes)} of {format_bytes(one.bytes)}: "
                f"{one.planned} planned, {one.found} made"
                for one in self.left
            ]
        if self.products:
            text.append(f"  {self.products} matrix products that are cut otherwise")
        return "\n".join(text)


def fewest(
    lowered: Lowered,
    fn: Callable[..., Any],
    *,
    machine: Machine | None = None,
    heard: Callable[[int, bool], None] | None = None,
) -> Fewest:
    """Find the lines of a plan that cannot be left out.

    Args:
      lowered: from `autoshard.lower`.
      fn: the function that it was made from.
      machine: of the plan; None: of the name in the plan.
      heard: called after every check with the number of lines and whether they sufficed.

    Terms of a sum that the plan leaves unreduced are settled one by one here.

    Raises:
      MachineError: the plan leaves values unreduced, and its machine is not found.
    """
    plan = _settled(lowered.program, lowered.plan, machine)
    if plan is not lowered.plan:
        lowered = _relowered(lowered, plan, fn)
    sites = sites_of(lowered.program, plan, lowered.mesh, fn, *lowered.in_shapes)
    search = _Search(LineChecks(lowered, sites, fn), sites, heard)
    chosen = search.found()
    found = search.checks.truth(chosen)
    return Fewest(
        tuple(chosen),
        search.checks.written(chosen),
        len(sites.lines),
        search.checks.checks,
        found.tallies,
        found.products,
    )


def _settled(program: Program, plan: Plan, machine: Machine | None) -> Plan:
    """The plan without unreduced values, which no constraint can say."""
    decisions = settled(program, plan.decisions)
    if decisions == plan.decisions:
        return plan
    machine = machine or load(plan.machine)
    prices = prices_of(plan, program, machine)
    return priced_anew(replace(plan, decisions=decisions), prices)


def _relowered(lowered: Lowered, plan: Plan, fn: Callable[..., Any]) -> Lowered:
    devices = list(lowered.mesh.devices.flat) if isinstance(lowered.mesh, Mesh) else None
    return lower(plan, fn, *lowered.in_shapes, devices=devices)


class _Search:
    """Adds and drops lines; remembers what every set of lines leaves."""

    def __init__(
        self, checks: LineChecks, sites: Sites, heard: Callable[[int, bool], None] | None
    ) -> None:
        self.checks, self.sites, self.heard = checks, sites, heard
        self.known: dict[Chosen, Mismatch] = {}
        self.first = self.mismatch(frozenset())

    def mismatch(self, lines: Chosen) -> Mismatch:
        if lines not in self.known:
            self.known[lines] = self.checks.mismatch(lines)
            if self.heard is not None:
                self.heard(len(lines), not self.known[lines].wrong)
        return self.known[lines]

    def size(self, left: Mismatch) -> tuple[int, float]:
        """Fewer differences first, then what they amount to, beside having no lines at all."""
        arrays = left.arrays / max(self.first.arrays, 1.0)
        return left.wrong, arrays + left.bytes / max(self.first.bytes, 1.0)

    def found(self) -> list[Line]:
        """Lines of which none can be left out, and which leave the least that was found."""
        chosen: list[Line] = []
        while self.mismatch(frozenset(chosen)).wrong:
            more = self.one_more(chosen) or self.two_more(chosen)
            if not more:
                break
            chosen = [*chosen, *more]
        return self.without_needless(chosen)

    def one_more(self, chosen: list[Line]) -> list[Line]:
        """The line beside those chosen that leaves least; none where none makes fewer differ."""
        left = self.mismatch(frozenset(chosen))
        line, after = min(
            self.better(chosen, left),
            key=lambda one: self.size(one[1]),
            default=(None, left),
        )
        return [line] if line is not None and after.wrong < left.wrong else []

    def two_more(self, chosen: list[Line]) -> list[Line]:
        """Two lines that only together make fewer things differ, or none."""
        left = self.mismatch(frozenset(chosen))
        free = self.free(chosen)
        for one in self.near(free, left)[:NEAR]:
            for other in free[:BREADTH]:
                if set(one.spots).isdisjoint(other.spots):
                    after = self.mismatch(frozenset([*chosen, one, other]))
                    if after.wrong < left.wrong:
                        return [one, other]
        return []

    def free(self, chosen: list[Line]) -> list[Line]:
        """The lines at spots of which nothing is said yet."""
        taken = {spot for line in chosen for spot in line.spots}
        return [line for line in self.sites.lines if taken.isdisjoint(line.spots)]

    def better(self, chosen: list[Line], left: Mismatch) -> list[tuple[Line, Mismatch]]:
        """What lines leave beside those chosen; those about what differs most first.

        Where some of the first `BREADTH` make fewer differences, the others are not tried.
        """
        found = []
        for number, line in enumerate(self.near(self.free(chosen), left)):
            if number % BREADTH == 0 and any(after.wrong < left.wrong for _, after in found):
                break
            found.append((line, self.mismatch(frozenset([*chosen, line]))))
            if not found[-1][1].wrong:
                break
        return found

    def near(self, lines: Sequence[Line], left: Mismatch) -> list[Line]:
        """Lines in the user's code about collectives that are missing, or not planned, first."""
        missing = {at.rpartition(" ")[2] for one in left.tallies for at in one.planned_at}
        odd = {at.rpartition(" ")[2] for one in left.tallies for at in one.found_at}

        def hits(line: Line) -> int:
            own = set(line.where)
            return 2 * (not own.isdisjoint(missing)) + (not own.isdisjoint(odd))

        return sorted(lines, key=lambda line: -hits(line))

    def without_needless(self, chosen: list[Line]) -> list[Line]:
        """Leave out what can be left out, one by one, until nothing can.

        Propagation is not monotone: with fewer lines one that was needed may be needless.
        """
        wrong = self.mismatch(frozenset(chosen)).wrong
        while True:
            for line in sorted(chosen, key=lambda one: not one.block):
                rest = [other for other in chosen if other is not line]
                if self.mismatch(frozenset(rest)).wrong <= wrong:
                    chosen = rest
                    break
            else:
                return chosen
