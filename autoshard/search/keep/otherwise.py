"""What it would cost to keep a value otherwise: each answer is a search of its own.

A value that the backward pass needs is saved or computed again. To say what the other would cost,
the step is rewritten so, and planned anew on the plan's mesh, under the plan's requirements and
memory limit; every layout is free to change with it. Where nothing fits, it is planned without a
limit too, to say what there would be to gain, and how much memory it takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from autoshard.machine.machine import Machine
from autoshard.near import hint
from autoshard.plan.fits import needed_bytes
from autoshard.plan.plan import Plan
from autoshard.plan.records import KeptValue
from autoshard.plan.same_program import as_planned_for
from autoshard.problem.requirements.text import from_json
from autoshard.program.keep import find_residuals
from autoshard.program.keep.names import without_part
from autoshard.program.rewritten import resaved
from autoshard.program.select import RequirementError
from autoshard.program.trace import Program, TraceError
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.keep.kept_values import kept_values
from autoshard.search.keep.trials import hosted_by, saved_by
from autoshard.search.options import SearchOptions
from autoshard.search.search import candidates


@dataclass(frozen=True, slots=True)
class KeptOtherwise:
    """The best plan found that keeps one value otherwise, beside a plan.

    Attributes:
      value: as the plan has it.
      instead: what is done with it: ``saved`` or ``computed again``.
      seconds: of a step more than the plan's, less where negative; None where there is no plan.
      bytes: of the peak of a device more than the plan's, likewise.
      fits: whether that is within the plan's memory limit.
      why: where there is no plan, the reason.
    """

    value: KeptValue
    instead: str
    seconds: float | None = None
    bytes: float | None = None
    fits: bool = False
    why: str = ""

    @property
    def now(self) -> str:
        """What the plan does with it."""
        if self.value.offloaded:
            return "on the host"
        return "saved" if self.value.saved else "computed again"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "now": self.now}


def keep_choices(program: Program, plan: Plan, patterns: Sequence[str] = ()) -> list[KeptValue]:
    """The values of which a plan decides whether they are saved, the largest first.

    Args:
      program: of the plan.
      patterns: of names, with or without the turns that they are of, or of `checkpoint_name`s, with
        ``*``; all that are saved and all products
        that are computed again by default.

    Raises:
      RequirementError: a pattern fits none, or the program has none.
    """
    plan, program = as_planned_for(plan, program)
    residuals = find_residuals(program.written)
    found = kept_values(
        residuals, saved_by(program, residuals), hosted_by(program), every=bool(patterns)
    )
    if not found:
        raise RequirementError(
            f"the backward pass of {program.name} needs no value that could be saved or computed "
            "again: they stand in loops (scan), and in unrolled layers under jax.checkpoint"
        )
    chosen = {}
    for pattern in patterns or ("*",):
        fit = [one for one in found if is_called(one, pattern)]
        if not fit:
            near = hint(pattern, [one.name for one in found])
            raise RequirementError(f"{program.name} keeps no value called {pattern!r}{near}")
        chosen.update({one.name: one for one in fit})
    return sorted(chosen.values(), key=lambda one: -one.bytes)


def otherwise(
    program: Program, machine: Machine, plan: Plan, value: KeptValue, *, time_limit: float = 20.0
) -> KeptOtherwise:
    """What a plan would cost that saves a value which `plan` computes again, or the other way.

    Args:
      program, machine: of the plan.
      value: one of `keep_choices`.
      time_limit: seconds of each search.
    """
    plan, program = as_planned_for(plan, program)
    residuals = find_residuals(program.written)
    saved = set(saved_by(program, residuals)) ^ {value.name}
    found = KeptOtherwise(value, "computed again" if value.saved else "saved")
    try:
        away = hosted_by(program).intersection(residuals.stacks(saved))
        early = program.options.get("prefetch", False)
        step = resaved(program, saved, sorted(away), prefetch=early)
    except TraceError as error:
        return replace(found, why=str(error))
    sizes = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    asked = SearchOptions(
        mesh=sizes,
        time_limit=time_limit,
        baselines=False,
        corrections=plan.corrections,
        by_schedule=False,
        requirements=[
            from_json(one["requirement"]) for one in plan.requirements if "requirement" in one
        ],
        constraints=any("requirement" not in one for one in plan.requirements),
    )
    for fits, limit in ((True, plan.memory_limit), (False, math.inf)):
        try:
            (other,) = candidates(step, machine, replace(asked, memory_limit=limit))
        except (InfeasibleError, NoPlanError) as error:
            found = replace(found, why=str(error).split("\n")[0])
            continue
        return replace(
            found,
            seconds=other.estimate.step_seconds - plan.estimate.step_seconds,
            bytes=needed_bytes(other.estimate) - needed_bytes(plan.estimate),
            fits=fits,
        )
    return found


def is_called(value: KeptValue, pattern: str) -> bool:
    """Whether a pattern is the name or the `checkpoint_name` of a value, with or without turns."""
    bare = without_part(value.name)[0]
    named = pattern == value.name or fnmatchcase(bare, pattern)
    return named or fnmatchcase(value.label, pattern)
