"""Memory against step time: the plans of which none is both smaller and faster than another.

    found = frontier(program, "h100-8", accumulate=(1, 2, 4))
    found.price(0)        # seconds that the step takes longer for each GiB that it gives back

The step is planned within the memory of the chip, and then within less and less: limits at equal
distances between the peak of the smallest plan so far and what the inputs alone take, or, once a
limit has no plan, that limit or the least one of which the search says that it has one. What is
saved for the backward pass, how many microbatches there are, the mesh and the layouts are chosen
anew each time.
A plan that another one beats in both is left out, so that along the front the step grows as memory
shrinks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from autoshard.files import NotNegative, typed
from autoshard.interrupts import acknowledge
from autoshard.machine.load import load
from autoshard.machine.machine import Machine
from autoshard.plan.fits import needed_bytes
from autoshard.plan.plan import Plan, PlanError
from autoshard.program.trace import Program
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.options import Remat
from autoshard.search.search import search
from autoshard.solve.limit_hit import LimitHit
from autoshard.terminal import table
from autoshard.units import counted, format_bytes, format_seconds

GIB = 2.0**30
CLOSE = 0.01
"""Of the memory of a plan: a limit that is nearer to it is not tried."""


@dataclass(frozen=True, slots=True)
class WrittenPoint:
    """A point of the front as a file has it; what stands beside the plan follows from plans."""

    plan: dict[str, Any]
    peak_bytes: NotNegative = 0
    step_seconds: NotNegative = 0.0
    bound: float = 0.0
    seconds_per_gib: float | None = None


@dataclass(frozen=True, slots=True)
class WrittenFrontier:
    """The front as a file has it; see `Frontier`."""

    points: tuple[WrittenPoint, ...]
    nothing_within: NotNegative = 0.0
    no_time_for: tuple[NotNegative, ...] = ()
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Frontier:
    """The front of one step on one machine.

    Attributes:
      plans: the one that takes most memory and least time first.
      nothing_within: the largest limit in bytes within which no plan fits; 0.0 if there is none.
      no_time_for: limits for which the time passed before a plan was found.
      interrupted: whether an interrupt ended it before all limits were planned for.
    """

    plans: tuple[Plan, ...]
    nothing_within: float = 0.0
    no_time_for: tuple[float, ...] = ()
    interrupted: bool = False

    def price(self, place: int) -> float | None:
        """Seconds a step that one GiB per device is worth between a plan and the next smaller one.

        None of the smallest plan, and where the next one takes as much.
        """
        if place + 1 >= len(self.plans):
            return None
        here, there = (self.plans[k].estimate for k in (place, place + 1))
        gibs = (needed_bytes(here) - needed_bytes(there)) / GIB
        return (there.step_seconds - here.step_seconds) / gibs if gibs > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Plain data; plans whole."""
        return {
            "points": [
                {
                    "peak_bytes": needed_bytes(plan.estimate),
                    "step_seconds": plan.estimate.step_seconds,
                    "bound": plan.proof.bound,
                    "seconds_per_gib": self.price(place),
                    "plan": plan.to_json(),
                }
                for place, plan in enumerate(self.plans)
            ],
            "nothing_within": self.nothing_within,
            "no_time_for": list(self.no_time_for),
            "interrupted": self.interrupted,
        }

    @classmethod
    def from_json(cls, data: Any) -> Frontier:
        """The inverse of `to_json`.

        Raises:
          PlanError: it is no such front.
        """
        name = "the front is damaged"
        written = typed(data, WrittenFrontier, name=name, error=PlanError)
        if not written.points:
            raise PlanError(f"{name}: it has no points; run `autoshard frontier` again")
        plans = tuple(Plan.from_json(point.plan) for point in written.points)
        return cls(plans, written.nothing_within, written.no_time_for, written.interrupted)

    ALIGNED_RIGHT: ClassVar = (True, True, True, False, True, False)
    """Which columns of `rows` hold numbers."""

    def rows(self) -> list[tuple[str, ...]]:
        """The front as a table, with its headings."""
        rows = [("memory", "step", "a GiB less costs", "mesh", "microbatches", "saved")]
        for place, plan in enumerate(self.plans):
            price = self.price(place)
            rows.append(
                (
                    format_bytes(needed_bytes(plan.estimate)),
                    format_seconds(plan.estimate.step_seconds),
                    "" if price is None else format_seconds(price),
                    str(plan.mesh),
                    str(plan.options.get("microbatches", 1)),
                    _saved(plan),
                )
            )
        return rows

    def limits(self) -> list[str]:
        """Within what no plan fits, or was found in time."""
        said = [f"within {format_bytes(limit)}, there was no time" for limit in self.no_time_for]
        if self.nothing_within:
            said.append(f"within {format_bytes(self.nothing_within)}, no plan fits")
        return said

    def __str__(self) -> str:
        first, said = self.plans[0], self.limits()
        right = [column for column, number in enumerate(self.ALIGNED_RIGHT) if number]
        text = f"{first.program} on {first.machine}\n\n{table(self.rows(), right=right)}"
        return "\n".join([text, *(["", *(f"  {one}" for one in said)] if said else [])])


def _saved(plan: Plan) -> str:
    """What a plan saves for the backward pass, in a few words."""
    if "saved" not in plan.options:
        return "as it is written"
    return counted(len(plan.options["saved"]), "value")


def frontier(
    program: Program,
    machine: Machine | str,
    *,
    points: int = 6,
    mesh: Mapping[str, int | Sequence[int]] | None = None,
    memory_limit: float | None = None,
    time_limit: float = 300.0,
    remat: Remat = "search",
    accumulate: Sequence[int] = (1,),
    heard: Callable[[str], None] | None = None,
) -> Frontier:
    """Return the front of memory against step time.

    Args:
      program: the traced step.
      machine: a `Machine`, the name of a preset, or the path of a file.
      points: how many memory limits are planned for at most.
      mesh, remat, accumulate: as of `autoshard.search`.
      memory_limit: the largest, in bytes per device; by default the chip's memory less its reserve.
      time_limit: seconds for all searches together.
      heard: is told what is being done. An interrupt (Ctrl-C) ends with the plans so far.

    Raises:
      MeshError, InfeasibleError, NoPlanError, TraceError: as `autoshard.search`, of the largest
        limit.
    """
    machine = load(machine) if isinstance(machine, str) else machine
    started = time.monotonic()
    tell = heard or (lambda words: None)

    def plan_within(limit: float | None, left: int) -> Plan:
        rest = time_limit - (time.monotonic() - started)
        place = f"plan {points - left + 1} of at most {points}"
        within = "" if limit is None else f", within {format_bytes(limit)}"
        tell(f"{place}{within}")
        return search(
            program,
            machine,
            mesh=mesh,
            memory_limit=limit,
            time_limit=max(rest / left, 0.5),
            baselines=False,
            by_schedule=False,
            remat=remat,
            accumulate=accumulate,
            progress=lambda news: tell(f"{place}{within}: {news.words}"),
        )

    found = [plan_within(memory_limit, points)]
    low = sum(program.values[v].bytes for v in program.inputs) / machine.chips
    attained, nothing, late, interrupted = False, 0.0, [], False
    for left in range(points - 1, 0, -1):
        high = min(needed_bytes(plan.estimate) for plan in found)
        limit = high - (high - low) / (left if attained else left + 1)
        if high - limit < CLOSE * high or found[-1].proof.limit_hit is LimitHit.INTERRUPTED:
            break
        try:
            found.append(plan_within(limit, left))
        except InfeasibleError as error:
            nothing = max(nothing, limit)
            least = error.least_bytes
            attained = least is not None and limit < least < high
            low = least if attained and least is not None else limit
        except NoPlanError:
            late.append(limit)
            low, attained = limit, False
        except KeyboardInterrupt as interrupt:  # before this limit had any plan
            acknowledge(interrupt)
            interrupted = True
            break
    interrupted = interrupted or found[-1].proof.limit_hit is LimitHit.INTERRUPTED
    return Frontier(_front(found), nothing, tuple(late), interrupted)


def _front(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """The plans that no other one beats in both memory and time, the largest first."""
    front: list[Plan] = []
    sizes = [(needed_bytes(plan.estimate), plan.estimate.step_seconds) for plan in plans]
    for _, plan in sorted(zip(sizes, plans, strict=True), key=lambda one: one[0]):
        if not front or plan.estimate.step_seconds < front[-1].estimate.step_seconds:
            front.append(plan)
    return tuple(reversed(front))
