"""The fewest lines with which Shardy's own propagation makes the plan.

`autoshard.lower` constrains every value. With the shardings of the inputs and results given, most
of that follows by propagation, and few `with_sharding_constraint`s remain to be written into the
user's own code (`autoshard.study.annotate.sites`). A line there constrains what is computed again
and the cotangent too, because it is differentiated with the rest, unless it says something else of
them (`autoshard.program.annotations`).

A set of lines is held to the plan by running Shardy's passes
(`autoshard.study.annotate.line_checks`). The set that `autoshard.study.annotate.line_search` finds
is checked once more, in a step that is traced with these lines alone.

The plan is **reached** where all products are cut as planned and the collectives that differ, which
are listed, take at most `TOLERANCE` of the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from jax.sharding import Mesh

from autoshard.lower.compare import Tally
from autoshard.lower.parts.cut import LoweringError
from autoshard.lower.spmd import Lowered, lower
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.plan import Plan
from autoshard.plan.unreduced_sums import settled
from autoshard.program.state.in_place import Returning
from autoshard.program.trace import Program
from autoshard.search.assemble import priced_anew, prices_of
from autoshard.study.annotate.line_checks import LineChecks
from autoshard.study.annotate.line_search import TOLERANCE, LineSearch, per_block
from autoshard.study.annotate.lines import Line
from autoshard.study.annotate.sites import sites_of
from autoshard.units import counted, format_bytes, format_percent


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
      share: what these collectives take of the planned step, and these products of all.
      ended: `time` or `interrupted` where that ended the search: fewer lines might do.
    """

    lines: tuple[Line, ...]
    lowered: Lowered
    of: int
    checks: int = 0
    left: tuple[Tally, ...] = ()
    products: int = 0
    share: float = 0.0
    ended: str = ""

    @property
    def exact(self) -> bool:
        """Whether the lines make the plan to the last collective."""
        return not self.left and not self.products

    @property
    def enough(self) -> bool:
        """Whether the lines make the plan, but for collectives that take next to nothing."""
        return not self.products and self.share <= TOLERANCE

    @property
    def in_blocks(self) -> int:
        """How many of the lines are in repeated blocks, once for all repetitions."""
        return sum(line.block for line in self.lines)

    @property
    def named(self) -> int:
        """How many arrays the lines tell apart: one about a function has an entry for each."""
        return sum(line.named for line in self.lines)

    @property
    def per_block(self) -> int:
        """How many lines there are in the repeated block that has most."""
        return per_block(self.lines)

    def __str__(self) -> str:
        if not self.lines and self.exact:
            return "the shardings of inputs and results are enough"
        inside = f" ({self.in_blocks} in repeated blocks)" if self.in_blocks else ""
        names = f" that name {counted(self.named, 'array')}" if self.named > len(self.lines) else ""
        text = [
            f"{len(self.lines)} of {counted(self.of, 'line')}{inside}{names}, beside the "
            "shardings of inputs "
            "and results:",
            *(f"  {part}" for line in self.lines for part in str(line).splitlines()),
        ]
        if self.enough and not self.exact:
            text.append(
                f"Otherwise than planned, {format_percent(self.share, '.2f')} of the step, are:"
            )
        elif not self.enough:
            more = "" if self.ended else "No more lines were found that help. "
            text.append(f"{more}Otherwise than planned are then:")
        if not self.exact:
            text += [
                f"  {one.kind} over {','.join(one.axes)} of {format_bytes(one.bytes)}: "
                f"{one.planned} planned, {one.found} made"
                for one in self.left
            ]
        if self.products:
            text.append(f"  {self.products} matrix products that are cut otherwise")
        if self.ended:
            why = "It was interrupted" if self.ended == "interrupted" else "The time is over"
            text.append(f"{why}: fewer lines, or others, may make the plan.")
        return "\n".join(text)

    def to_json(self) -> dict[str, Any]:
        """Plain data: the lines, and what they leave otherwise than planned."""
        return {
            "lines": [
                {"where": list(line.where), "text": str(line), "repeated": line.block}
                for line in self.lines
            ],
            "of": self.of,
            "checks": self.checks,
            "exact": self.exact,
            "enough": self.enough,
            "share": self.share,
            "ended": self.ended,
            "products": self.products,
            "left": [asdict(one) for one in self.left],
        }


def fewest(
    lowered: Lowered,
    fn: Callable[..., Any],
    *,
    machine: Machine | None = None,
    heard: Callable[[int, bool], None] | None = None,
    time_limit: float = math.inf,
) -> Fewest:
    """Find the lines of a plan that cannot be left out.

    Args:
      lowered: from `autoshard.lower`.
      fn: the function that it was made from.
      machine: of the plan; None: of the name in the plan.
      heard: called after every check with the number of lines and whether they sufficed.
      time_limit: seconds for the search; then, or on an interrupt (Ctrl-C), the best lines that
        were tried are returned.

    Terms of a sum that the plan leaves unreduced are settled one by one here.

    Raises:
      MachineError: the plan's machine is not found.
      LoweringError: the step is written for Explicit mesh axes, on which nothing is propagated, or
        calls `jax.shard_map`, whose specs no line can change.
    """
    until = time.monotonic() + time_limit
    if lowered.program.explicit:
        raise LoweringError(
            f"{lowered.program.name} is written for Explicit mesh axes, where types say how arrays "
            "lie and Shardy propagates nothing: run its plan with `autoshard.lower`, or trace it "
            "on a mesh of Auto axes to be told the lines for these"
        )
    fn = Returning(fn, lowered.in_shapes, lowered.program.refs)
    if lowered.program.shard_maps:
        raise LoweringError(
            f"{lowered.program.name} calls jax.shard_map: its specs say how its arrays lie, and no "
            "line beside it says otherwise, while the plan decides this for each op of its body: "
            "run the plan with `autoshard.lower`, or write the body as ordinary operations on "
            "whole arrays to be told the lines for these"
        )
    plan = _said(lowered.program, lowered.plan, machine)
    if plan is not lowered.plan:
        lowered = _relowered(lowered, plan, fn)
    sites = sites_of(lowered.program, plan, lowered.mesh, fn, *lowered.in_shapes)
    checks = LineChecks(lowered, sites, fn, machine or load(plan.machine))
    search = LineSearch(checks, sites, heard, until)
    chosen = search.found()
    found = search.checks.truth(chosen)
    return Fewest(
        tuple(chosen),
        search.checks.written(chosen),
        len(sites.lines),
        search.checks.checks,
        found.tallies,
        found.products,
        found.share,
        search.ended,
    )


def _said(program: Program, plan: Plan, machine: Machine | None) -> Plan:
    """The plan without what no constraint can say: unreduced values, and the orders of products."""
    decisions = settled(program, plan.decisions)
    if decisions != plan.decisions:
        machine = machine or load(plan.machine)
        prices = prices_of(plan, program, machine)
        plan = priced_anew(replace(plan, decisions=decisions), prices)
    return replace(plan, product_orders={}, row_major=())


def _relowered(lowered: Lowered, plan: Plan, fn: Callable[..., Any]) -> Lowered:
    devices = list(lowered.mesh.devices.flat) if isinstance(lowered.mesh, Mesh) else None
    return lower(plan, fn, *lowered.in_shapes, devices=devices)
