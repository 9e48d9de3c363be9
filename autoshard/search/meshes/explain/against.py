"""How another plan for several meshes differs: in its form, and in how stages are laid out.

Stages that both plans cut alike, on meshes of one shape, are compared value by value, and each
difference is priced alone in the step. What else differs is said as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autoshard.plan.plan import PlanError
from autoshard.plan.same_program import for_program
from autoshard.problem.requirements.bind import shown_layout, shown_value
from autoshard.search.explanation import Alternative
from autoshard.search.meshes.explain.answers import Place, of_step
from autoshard.search.meshes.explain.explain import PipelineExplainer
from autoshard.search.meshes.explain.names import stages_with
from autoshard.search.meshes.explain.staged import StepPrice
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.terminal import paragraph
from autoshard.units import counted, format_bytes, format_seconds


@dataclass(frozen=True, slots=True, eq=False)
class StageDifference:
    """How a stage is laid out otherwise.

    Attributes:
      place: the stage, in the plan that is explained.
      changes: inputs and results with another layout, as `path: before -> after`.
      others: how many values inside have another layout.
      alone: for each differing value that is priced its name and layout in the other plan, the best
        plan of the stage in which that one alone is so, and the step with it.
    """

    place: Place
    changes: tuple[str, ...]
    others: int
    alone: tuple[tuple[str, Alternative, StepPrice | None], ...]

    def lines(self, now: StepPrice, seconds: float) -> Iterator[str]:
        """Yield the lines of a text.

        Args:
          now: the price of the step.
          seconds: in which the stage works in a step.
        """
        yield paragraph(
            f"{self.place.title}: {counted(len(self.changes), 'input or result')} and "
            f"{counted(self.others, 'value')} inside laid out otherwise"
        )
        yield from (paragraph(change, indent=2, hanging=2) for change in self.changes)
        if self.alone:
            yield "  each of them alone, all else of the stage decided anew:"
        for shown, one, step in self.alone:
            told = one.note
            if step is not None and one.step_seconds is not None:
                told = "; ".join(of_step(step, now, self.place, one.step_seconds - seconds))
            yield paragraph(f"{shown}: {told}", indent=4, hanging=2)


@dataclass(frozen=True, slots=True, eq=False)
class PipelineDifference:
    """How another plan differs from one, from `against`.

    Attributes:
      seconds, bytes: of a step, and at the peak of each mesh, of the one plan and of the other, as
        they say.
      form: what differs beside layouts, as `microbatches: 4 -> 8`.
      stages: the stages that are cut alike and laid out otherwise.
      now: the price of the one plan's step, beside which others are priced.
      worked: in what time each of these stages works in a step.
      same_order: whether the order of the tasks is the same.
    """

    seconds: tuple[float, float]
    bytes: tuple[tuple[float, ...], tuple[float, ...]]
    form: tuple[str, ...]
    stages: tuple[StageDifference, ...]
    now: StepPrice
    worked: tuple[float, ...]
    same_order: bool

    def __str__(self) -> str:
        (mine, there), (own, theirs) = self.seconds, self.bytes
        lines = [
            paragraph(
                f"the other plan takes {format_seconds(there)} and {_peaks(theirs)}, this one "
                f"{format_seconds(mine)} and {_peaks(own)}"
            )
        ]
        lines += [paragraph(one, indent=2, hanging=2) for one in self.form]
        for stage, seconds in zip(self.stages, self.worked, strict=True):
            lines += stage.lines(self.now, seconds)
        if not self.form and not self.stages:
            order = "all stages are laid out alike; what differs is the order of their tasks"
            lines.append("the plans are alike" if self.same_order else order)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "step_seconds": list(self.seconds),
            "peak_bytes": [list(one) for one in self.bytes],
            "form": list(self.form),
            "same_order": self.same_order,
            "stages": [
                {
                    **one.place.to_json(),
                    "changes": list(one.changes),
                    "others": one.others,
                    "alone": [
                        {
                            "value": shown,
                            **alone.to_json(),
                            "pipeline": None if step is None else asdict(step),
                        }
                        for shown, alone, step in one.alone
                    ],
                }
                for one in self.stages
            ],
        }


def against(
    explainer: PipelineExplainer, other: PipelinePlan, target: str | None = None
) -> PipelineDifference:
    """Return how another plan of the step differs.

    Args:
      other: the other plan.
      target: which values to price, each alone in its layout of the other plan; by default all
        inputs of stages that differ.

    Raises:
      PlanError: the plan is for another program, or does not hold the plans of its stages.
      RequirementError: the target names nothing.
    """
    plan = explainer.plan
    if other.program != plan.program:
        raise PlanError(
            f"the plans are of different programs: {plan.program!r} and {other.program!r}; give "
            "two plans of one"
        )
    if not other.stage_plans:
        raise PlanError(
            f"the other plan of {other.program!r} was saved without the plans of its stages: "
            "search for it again"
        )
    values: dict[int, list[int]] = {}
    if target is not None:
        programs = explainer.staged.programs
        values = stages_with(target, programs, plan.stage_plans, explainer.stages)
    found = [
        _stage(explainer, other, stage, values.get(stage, []) if target else None)
        for stage in explainer.stages
        if _cut_alike(plan, other, stage)
    ]
    stages = tuple(one for one in found if one is not None)
    prices, count = explainer.staged.prices, plan.microbatches
    return PipelineDifference(
        seconds=(plan.step_seconds, other.step_seconds),
        bytes=(plan.peak_bytes, other.peak_bytes),
        form=tuple(_form(plan, other)),
        stages=stages,
        now=explainer.staged.now,
        worked=tuple(prices[one.place.stage].busy_seconds(count) for one in stages),
        same_order=plan.order == other.order,
    )


def _stage(
    explainer: PipelineExplainer, other: PipelinePlan, stage: int, values: Sequence[int] | None
) -> StageDifference | None:
    """Return how a stage is laid out otherwise, or None where it is not.

    Args:
      values: those that are priced; None for all inputs.
    """
    own = explainer.explainer(stage)
    there = for_program(other.stage_plans[stage], own.program).decisions
    before = own.plan.decisions
    if there == before:
        return None
    changes, others = own.differences(there)
    alone = []
    for value in own.program.inputs if values is None else values:
        layout = there.stored[value]
        if layout is not None and layout != before.stored[value]:
            kind = shown_layout(own.program, value, layout, own.plan.mesh)
            one = own.price(value, layout)
            shown = f"{shown_value(own.program, value)} as {kind}"
            alone.append((shown, one, explainer.step_with(stage, one)))
    return StageDifference(explainer.place(stage), changes, others, tuple(alone))


def _cut_alike(plan: PipelinePlan, other: PipelinePlan, stage: int) -> bool:
    """Whether a stage is the same program on the same mesh in both plans."""
    if stage >= len(other.stages):
        return False
    one, there = plan.stage_plans[stage], other.stage_plans[stage]
    keys = ((p.fingerprint, p.machine, p.mesh) for p in (one, there))
    return len(set(keys)) == 1


def _form(plan: PipelinePlan, other: PipelinePlan) -> Iterator[str]:
    """Yield what differs beside layouts."""
    pairs = (
        ("cluster", plan.cluster, other.cluster),
        ("microbatches", plan.microbatches, other.microbatches),
        ("stages", len(plan.stages), len(other.stages)),
        ("placement", plan.placement, other.placement),
        ("backward passes", plan.mode, other.mode),
        ("blocks of the stages", _blocks(plan), _blocks(other)),
        ("shapes of the meshes", _shapes(plan), _shapes(other)),
    )
    for name, before, after in pairs:
        if before != after:
            yield f"{name}: {before} -> {after}"
    for stage, (before, after) in enumerate(zip(plan.saves, other.saves, strict=False)):
        if before.choice != after.choice:
            yield f"stage {stage} saves: {before.title} -> {after.title}"
    if bool(plan.saves) != bool(other.saves):
        words = {True: "what the search chose", False: "what the program says"}
        yield f"stages save: {words[bool(plan.saves)]} -> {words[bool(other.saves)]}"


def _blocks(plan: PipelinePlan) -> str:
    return ", ".join(str(len(names)) for names in plan.stages)


def _shapes(plan: PipelinePlan) -> str:
    return " + ".join(map(str, plan.shapes))


def _peaks(sizes: Sequence[float]) -> str:
    return ", ".join(format_bytes(size) for size in sizes)
