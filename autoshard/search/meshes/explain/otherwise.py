"""What it would cost of the step to keep a value of one stage otherwise.

A value that a stage's backward pass needs is saved, computed again, or waits on the host. To say
what another of these would cost, the stage is cut so and planned anew on its mesh
(`autoshard.search.keep.otherwise` does the same on one mesh), and the step is priced with it: what
is saved is kept for every microbatch that waits, and what is computed again may cost nothing where
other stages are slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.lower.mpmd.cut.saving import StageChoice, Staged, bare, wanted
from autoshard.lower.mpmd.partition import Partition
from autoshard.machine.machine import Machine
from autoshard.near import hint
from autoshard.plan.plan import Plan
from autoshard.plan.records import KeptValue
from autoshard.program.keep import KeepError
from autoshard.program.select import RequirementError
from autoshard.program.trace import Program, TraceError
from autoshard.search.keep.kept_values import kept_values
from autoshard.search.keep.otherwise import KeptOtherwise, is_called
from autoshard.search.meshes.explain.answers import StageKept
from autoshard.search.meshes.explain.explain import PipelineExplainer
from autoshard.search.meshes.explain.staged import StagedPlan
from autoshard.search.meshes.matching import recut
from autoshard.search.meshes.price import price
from autoshard.search.meshes.pricer import GAP
from autoshard.search.meshes.stage_program import stage_program
from autoshard.search.search import InfeasibleError, NoPlanError, search

SAVED, AGAIN, HOST = "saved", "computed again", "on the host"


@dataclass(frozen=True, slots=True)
class Instead:
    """A value of a stage, and what could be done with it instead of what the plan does."""

    stage: int
    value: KeptValue
    instead: str


def keep_choices(explainer: PipelineExplainer, patterns: Sequence[str] = ()) -> list[Instead]:
    """Return what may be kept otherwise in the stages that are asked about, the largest first.

    Args:
      patterns: of names, or of `checkpoint_name`s, with ``*``; by default all that are saved and
        all products that are computed again.

    Raises:
      RequirementError: a pattern fits none, or these stages have none.
    """
    staged = explainer.staged
    cut = _cut(staged)
    values = {stage: _values(staged, cut, stage, bool(patterns)) for stage in explainer.stages}
    known = dict.fromkeys(one.name for row in values.values() for one in row)
    if not known:
        raise RequirementError(
            f"the backward passes of {staged.plan.program} need no value that could be saved or "
            "computed again: they stand in loops (scan), and in unrolled layers under "
            "jax.checkpoint"
        )
    for pattern in patterns:
        if not any(is_called(one, pattern) for row in values.values() for one in row):
            stages = ", ".join(map(str, explainer.stages))
            raise RequirementError(
                f"a value called {pattern!r} is kept by no stage among {stages}"
                f"{hint(pattern, known)}"
            )
    found = [
        Instead(stage, one, instead)
        for stage, row in values.items()
        for one in row
        if any(is_called(one, pattern) for pattern in patterns or ("*",))
        for instead in _instead(staged, cut, stage, one)
    ]
    return sorted(found, key=lambda one: -one.value.bytes)


def otherwise(
    explainer: PipelineExplainer, asked: Instead, *, time_limit: float = 20.0
) -> StageKept:
    """Return what the step would cost in which one value of a stage is kept otherwise.

    Args:
      asked: one of `keep_choices`.
      time_limit: seconds of each search.
    """
    staged, stage = explainer.staged, asked.stage
    place = explainer.place(stage)
    found = StageKept(place, KeptOtherwise(asked.value, asked.instead))
    try:
        partition = _recut(staged, asked)
        program = stage_program(partition, stage, staged.plan.mode)
        traced = program.traced()
    except (KeepError, TraceError) as error:
        return _without(found, str(error))
    machine = staged.machine(stage)
    now, before = staged.now, staged.prices[stage]
    own = staged.plan.stage_plans[stage]
    limits = own.memory_limit, staged.plan.memory_limit[place.mesh], math.inf
    for limit in dict.fromkeys(limits):
        plan = _planned(traced, machine, own, limit, time_limit)
        if isinstance(plan, str):
            found = _without(found, plan)
            continue
        made = price(plan, traced, machine, program.arguments)
        step = staged.with_stage(stage, made, partition)
        if step.seconds is None or now.seconds is None:
            return _without(found, step.why)
        worked = made.busy_seconds(staged.plan.microbatches)
        found = StageKept(
            place,
            KeptOtherwise(
                asked.value,
                asked.instead,
                seconds=step.seconds - now.seconds,
                bytes=step.peak_bytes[place.mesh] - now.peak_bytes[place.mesh],
                fits=step.fits,
                why=step.why,
            ),
            stage_seconds=worked - before.busy_seconds(staged.plan.microbatches),
            host_bytes=made.host_bytes - before.host_bytes,
        )
        if step.fits:
            break
    return found


def _planned(
    program: Program, machine: Machine, before: Plan, limit: float, time_limit: float
) -> Plan | str:
    """Return the best plan of a stage on the mesh of its plan before, or why there is none."""
    try:
        return search(
            program,
            machine,
            mesh=dict(zip(before.mesh.names, before.mesh.sizes, strict=True)),
            memory_limit=limit,
            time_limit=time_limit,
            gap=GAP,
            baselines=False,
        )
    except InfeasibleError as error:
        return error.plan or str(error).split("\n")[0]
    except NoPlanError as error:
        return str(error).split("\n")[0]


def _without(found: StageKept, why: str) -> StageKept:
    return replace(found, kept=replace(found.kept, why=" ".join(why.split())))


def _chosen(staged: StagedPlan) -> list[StageChoice]:
    """Return what the stages save as planned."""
    plan = staged.plan
    return [one.choice for one in plan.saves] or [StageChoice()] * len(plan.stages)


def _cut(staged: StagedPlan) -> Staged:
    """Return what the stages may save."""
    saves = recut(staged.plan, staged.step.traced, _chosen(staged)).cut.saves
    assert saves is not None
    return saves.staged


def _values(staged: StagedPlan, cut: Staged, stage: int, every: bool) -> list[KeptValue]:
    """Return the values of a stage, with their names in any stage."""
    residuals, choice = cut.residuals[stage], _chosen(staged)[stage]
    mine, _ = wanted(residuals, choice)
    away = {name for name in residuals.homes if bare(name) in choice.offloaded}
    values = kept_values(residuals, mine, away, every=every)
    return [replace(one, name=bare(one.name)) for one in values]


def _instead(staged: StagedPlan, cut: Staged, stage: int, value: KeptValue) -> list[str]:
    """Return what could be done with a value that is not done."""
    now = HOST if value.offloaded else SAVED if value.saved else AGAIN
    ways = [SAVED, AGAIN]
    residuals, choice = cut.residuals[stage], _chosen(staged)[stage]
    mine, _ = wanted(residuals, choice)
    full = {bare(name): name for name in residuals.homes}[value.name]
    if staged.machine(stage).host is not None and full in residuals.stacks(mine | {full}):
        ways.append(HOST)
    return [way for way in ways if way != now]


def _recut(staged: StagedPlan, asked: Instead) -> Partition:
    """Return the step in which a value of a stage is kept otherwise.

    Raises:
      KeepError: it cannot be.
    """
    cut, choices = _cut(staged), _chosen(staged)
    residuals, choice = cut.residuals[asked.stage], choices[asked.stage]
    mine, _ = wanted(residuals, choice)
    full = {bare(name): name for name in residuals.homes}[asked.value.name]
    saved = mine - {full} if asked.instead == AGAIN else mine | {full}
    away = set(choice.offloaded) - {asked.value.name}
    if asked.instead == HOST:
        away.add(asked.value.name)
    stacks = {bare(name) for name in residuals.stacks(saved)}
    early = staged.machine(asked.stage).chip.compiler.name != "xla:tpu"
    choices[asked.stage] = StageChoice(
        frozenset(map(bare, saved)),
        frozenset(away & stacks),
        choice.prefetch or (asked.instead == HOST and early),
    )
    return recut(staged.plan, staged.step.traced, choices)
