"""The step of a plan, cut into the stages of the plan, or where the two differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.lower.mpmd.cut.saving import StageChoice
from autoshard.lower.mpmd.cut.stages import StageError
from autoshard.lower.mpmd.partition import Partition, TracedStep, trace_step
from autoshard.plan.plan import PlanError
from autoshard.program.keep import KeepError
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.stage_program import Argument, StageProgram, stage_programs
from autoshard.units import counted


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """The step of a plan.

    Attributes:
      traced: the step, which may be cut otherwise.
      partition: the step in the stages of the plan, which save what the plan says.
      programs: the program of every stage.
    """

    traced: TracedStep
    partition: Partition
    programs: tuple[StageProgram, ...]


def matched(
    plan: PipelinePlan,
    fn: Callable[..., Any],
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
) -> Matched:
    """Return a step as a plan cuts it; arguments are those of `lower_plan`.

    Raises:
      PlanError: the plan is for another step. All differences are named.
    """
    count = plan.microbatches if plan.accumulated else None
    traced = trace_step(fn, *args, donate_argnums=donate_argnums, microbatches=count)
    try:
        partition = recut(plan, traced, [one.choice for one in plan.saves])
    except StageError:  # the blocks differ; the error below names them
        partition = traced.cut(1)
    except KeepError as error:
        raise PlanError(f"the plan of {plan.program!r} is not for this step: {error}") from error
    return Matched(traced, partition, _matching(plan, partition))


def recut(plan: PipelinePlan, traced: TracedStep, saves: Sequence[StageChoice]) -> Partition:
    """Return the step in the stages of a plan.

    Args:
      saves: what each stage saves; none where that is what the program says.

    Raises:
      StageError: the step has fewer blocks.
      KeepError: a stage has no such values to save.
    """
    counts = [len(blocks) for blocks in plan.stages]
    return traced.cut(counts, saved=(lambda _: saves) if saves else None)


def _matching(plan: PipelinePlan, partition: Partition) -> tuple[StageProgram, ...]:
    """Return the programs of the stages, whose arguments are those of the plan's shardings."""
    faults = []
    programs: tuple[StageProgram, ...] = ()
    if partition.microbatches != plan.microbatches:
        faults.append(
            f"the plan has {counted(plan.microbatches, 'microbatch')}, {partition.name} has "
            f"{partition.microbatches}"
        )
    if partition.cut.stages.names != plan.stages:
        faults.append(
            f"the plan's stages are {_short(plan.stages)}, those of {partition.name} are "
            f"{_short(partition.cut.stages.names)}"
        )
    if not faults:
        programs = stage_programs(partition, plan.mode)
        for stage, (program, planned) in enumerate(zip(programs, plan.shardings, strict=True)):
            if list(map(_name, program.arguments)) != [_name(one.argument) for one in planned]:
                faults.append(f"stage {stage} has other arguments than those that were planned")
    if faults:
        raise PlanError(
            f"the plan of {plan.program!r} is not for this step:"
            + "".join(f"\n  * {fault}" for fault in faults)
            + "\nsearch again"
        )
    return programs


def _name(argument: Argument) -> tuple[str, int, str]:
    """Return a key that is the same in every trace of a step, unlike the numbers of values."""
    return argument.group, argument.stage, argument.path


def _short(stages: Sequence[Sequence[str]]) -> str:
    return ", ".join(names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}" for names in stages)
