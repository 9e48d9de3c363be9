"""Explains why a value has its layout in a stage, and what of the step another layout costs.

    explainer = PipelineExplainer(plan, step, params, opt_state, batch, donate_argnums=(0, 1))
    for found in explainer.explain("params.layers.w1"):
        print(found)

A stage is a program with a plan of one mesh, so that what explains those explains it
(`autoshard.search.explain`): another layout is priced by the best plan of the stage that has it.
What the step makes of it is priced by the schedule with that plan (`staged`): a stage for which
nobody waits may be slower at no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autoshard.problem.requirements.bind import shown_value
from autoshard.program.select import RequirementError
from autoshard.search.dearest import dearest
from autoshard.search.explain import Explainer
from autoshard.search.explanation import Alternative, Explanation
from autoshard.search.meshes.explain.answers import Place, StageDearest, StageExplanation
from autoshard.search.meshes.explain.names import stages_with
from autoshard.search.meshes.explain.staged import StagedPlan, StepPrice
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.units import listed


class PipelineExplainer:
    """Answers questions about one plan for several meshes.

    Args:
      plan: the plan to explain.
      fn, *args: the step and its arguments, as for `autoshard.lower_plan`.
      donate_argnums: positions of arguments that the step may overwrite.
      stages: the stages that are asked about; by default all.
      time_limit: seconds to prepare each stage.

    Raises:
      PlanError: the plan is for another step, or does not hold the plans of its stages.
      RequirementError: there are no such stages.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        fn: Callable[..., Any],
        *args: Any,
        donate_argnums: int | Sequence[int] = (),
        stages: Sequence[int] | None = None,
        time_limit: float = 60.0,
    ) -> None:
        self.plan, self.time_limit = plan, time_limit
        self.stages = known_stages(plan, stages)
        self.staged = StagedPlan.of(plan, fn, *args, donate_argnums=donate_argnums)
        self._explainers: dict[int, Explainer] = {}
        self._found: dict[object, tuple[int, Explanation]] = {}
        self._places: dict[int, Place] = {}

    @property
    def notes(self) -> list[str]:
        """Return what a reader should know of the prices."""
        return self.staged.notes

    def place(self, stage: int) -> Place:
        """Return what a stage is in the step."""
        if stage not in self._places:
            plan, staged = self.plan, self.staged
            mesh = plan.mesh_of[stage]
            self._places[stage] = Place(
                stage=stage,
                mesh=mesh,
                machine=plan.machines[mesh],
                shape=str(plan.shapes[mesh]),
                busy_seconds=staged.prices[stage].busy_seconds(plan.microbatches),
                step_seconds=staged.now.seconds or plan.step_seconds,
                share=staged.share(stage),
            )
        return self._places[stage]

    def dearest(self) -> list[StageDearest]:
        """Return the values of each stage that have a layout and cost, the dearest first."""
        found, first = [], dict[object, int]()
        for stage in self.stages:
            staged = self.staged
            program, machine = staged.programs[stage], staged.machine(stage)
            values = tuple(dearest(program, machine, self.plan.stage_plans[stage]))
            before = first.setdefault(self._alike(stage), stage)
            alike = None if before == stage else before
            found.append(StageDearest(self.place(stage), values, alike))
        return found

    def values(self, target: str) -> list[tuple[int, int]]:
        """Return the stages in which a target names values, each with the number of a value.

        Raises:
          RequirementError: it names nothing in these stages.
        """
        programs, plans = self.staged.programs, self.plan.stage_plans
        found = stages_with(target, programs, plans, self.stages)
        return [(stage, value) for stage, values in found.items() for value in values]

    def explain(self, target: str, *, time_limit: float = 20.0) -> list[StageExplanation]:
        """Return the explanations of what a target names, in each stage where it lives.

        Args:
          time_limit: seconds for all alternatives of one value in one stage.

        Raises:
          RequirementError: it names nothing in these stages.
          PlanError: a value has no layout, because it is computed wherever it is needed.
        """
        return [self.of_value(*one, time_limit=time_limit) for one in self.values(target)]

    def of_value(self, stage: int, value: int, *, time_limit: float = 20.0) -> StageExplanation:
        """Return the explanation of a value in a stage; arguments as for `explain`."""
        key = (*self._alike(stage), value)
        first, found = self._found.get(key, (None, None))
        if found is None:
            found = self.explainer(stage).explain(value, time_limit=time_limit)
            self._found[key] = stage, found
        own = shown_value(self.staged.programs[stage], value)
        steps = [self.step_with(stage, one) for one in found.alternatives]
        if first is not None:  # inputs and results have other names there
            alike = tuple(replace(one, changes=()) for one in found.alternatives)
            found = replace(found, alternatives=alike)
        ranked, told = _by_step(replace(found, shown=own), steps)
        return StageExplanation(self.place(stage), ranked, self.staged.now, told, first)

    def explainer(self, stage: int) -> Explainer:
        """Return what explains the plan of a stage."""
        if stage not in self._explainers:
            staged = self.staged
            self._explainers[stage] = Explainer(
                staged.programs[stage],
                staged.machine(stage),
                self.plan.stage_plans[stage],
                time_limit=self.time_limit,
            )
        return self._explainers[stage]

    def step_with(self, stage: int, one: Alternative) -> StepPrice | None:
        """Return the price of the step with an alternative of a stage."""
        if one.decisions is None or one.step_seconds is None or one.peak_bytes is None:
            return None
        plan = self.plan.stage_plans[stage]
        estimate = replace(
            plan.estimate, step_seconds=one.step_seconds, peak_bytes=int(one.peak_bytes)
        )
        return self.staged.with_plan(
            stage, replace(plan, decisions=one.decisions, estimate=estimate)
        )

    def _alike(self, stage: int) -> tuple[object, ...]:
        """Return what equal stages have in common."""
        plan = self.plan.stage_plans[stage]
        return plan.fingerprint, plan.machine, plan.mesh, plan.memory_limit, plan.decisions


def known_stages(plan: PipelinePlan, stages: Sequence[int] | None) -> tuple[int, ...]:
    """Return the stages that are asked about; None are all.

    Raises:
      RequirementError: there are no such stages.
    """
    if stages is None:
        return tuple(range(len(plan.stages)))
    wrong = [stage for stage in stages if not 0 <= stage < len(plan.stages)]
    if wrong:
        raise RequirementError(
            f"the plan has no stage {listed(list(map(str, wrong)))}: its stages are 0 to "
            f"{len(plan.stages) - 1}"
        )
    return tuple(dict.fromkeys(stages))


def _by_step(
    found: Explanation, steps: Sequence[StepPrice | None]
) -> tuple[Explanation, tuple[StepPrice | None, ...]]:
    """Return an explanation and the prices of its alternatives, those of the fastest step first."""

    def key(k: int) -> tuple[bool, bool, float, float]:
        step, one = steps[k], found.alternatives[k]
        if step is None or step.seconds is None:
            return True, True, 0.0, 0.0
        return False, not step.fits, step.seconds, one.step_seconds or 0.0

    order = sorted(range(len(steps)), key=key)
    ranked = replace(
        found,
        alternatives=tuple(found.alternatives[k] for k in order),
        types=tuple(found.types[k] for k in order),
    )
    return ranked, tuple(steps[k] for k in order)
