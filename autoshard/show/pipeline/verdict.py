"""A plan for several meshes in six answers, as one for one mesh (`autoshard.show.verdict`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoshard.plan.text.page import share
from autoshard.plan.work import work_texts
from autoshard.search.meshes.plan import PipelinePlan
from autoshard.search.meshes.problem import TICK
from autoshard.show.sensitivity import Gain
from autoshard.show.verdict import NEARLY_FULL, NOTHING, Answer, Verdict, near_best, verified
from autoshard.units import counted, format_bytes, format_percent, format_seconds

CLOSE = 0.1
"""A gap up to this is good news: bounds over all placements are wider than those over layouts."""


def pipeline_verdict(
    plan: PipelinePlan, gains: Sequence[Gain], verification: Mapping[str, Any] | None = None
) -> Verdict:
    """The verdict on a plan for several meshes.

    Args:
      plan: whose figures are told.
      gains: what would make it faster, the best first (`autoshard.show.pipeline.gains`).
      verification: what `autoshard verify --json` printed, if it was run.
    """
    answers = (
        _which(plan),
        _fits(plan),
        _fast(plan),
        verified(_sure(plan), verification),
        _binds(plan),
        _helps(plan, gains),
    )
    which, fits, fast, sure, binds, helps = answers
    memory = "fits" if fits.good else "does not fit"
    line = f"{which.said}: {memory}; {fast.said} a step; {sure.said}; bound by {binds.said}"
    if plan.loses:
        line += "; all chips as one mesh would be faster"
    elif gains and _saved(plan, gains[0].step_seconds) >= NOTHING:
        line += f"; {helps.said} would save {_percent(plan, gains[0].step_seconds)}"
    return Verdict(f"{line}.", answers)


def _which(plan: PipelinePlan) -> Answer:
    """What the pipeline is, and what it gains over all chips as one mesh."""
    stages, meshes = len(plan.stages), len(plan.machines)
    said = f"{counted(stages, 'stage')} on {counted(meshes, 'mesh')}"
    one, step = plan.one_mesh, plan.step_seconds
    if one is None:
        return Answer("Which plan?", said, "all chips as one mesh were not tried")
    if one.step_seconds is None or step <= 0:
        return Answer("Which plan?", said, f"all chips as one mesh have no plan: {one.note}", True)
    ratio = one.step_seconds / step
    words = f"{format_percent(ratio - 1)} faster than"
    if ratio < 1:
        words = f"takes {format_percent(1 / ratio - 1)} longer than"
    elif ratio > 1.1:
        words = f"{ratio:.2f} times as fast as"
    detail = f"{words} the best plan of all chips as one mesh ({one.machine}, {one.mesh})"
    return Answer("Which plan?", said, detail, ratio > 1)


def _fits(plan: PipelinePlan) -> Answer:
    shares = [p / m for p, m in zip(plan.peak_bytes, plan.memory_limit, strict=True)]
    fullest = max(range(len(shares)), key=shares.__getitem__)
    peak, limit = plan.peak_bytes[fullest], plan.memory_limit[fullest]
    fits = all(part <= 1 for part in shares)
    detail = (
        f"the fullest is mesh {fullest} ({plan.machines[fullest]}): {format_bytes(peak)} of "
        f"{format_bytes(limit)} per device ({share(peak, limit)})"
    )
    return Answer("Does it fit?", "yes" if fits else "no", detail, fits)


def _fast(plan: PipelinePlan) -> Answer:
    detail = (
        f"a step of {counted(plan.microbatches, 'microbatch')} through "
        f"{counted(len(plan.stages), 'stage')}; "
        f"{format_seconds(max(plan.outer_seconds))} of it once a step"
    )
    detail = "; ".join([detail, *work_texts(plan.work, plan.step_seconds, plan.chips)])
    one = plan.one_mesh
    if one is not None and one.step_seconds is not None:
        detail += f"; all chips as one mesh: {format_seconds(one.step_seconds)}"
    return Answer(
        "How fast?", format_seconds(plan.step_seconds), detail, False if plan.loses else None
    )


def _sure(plan: PipelinePlan) -> Answer:
    detail = (
        f"no plan on several meshes takes less than {format_seconds(plan.bound)}, no order of "
        f"these tasks less than {format_seconds(plan.order_bound)}"
    )
    if plan.limit_hit is not None:
        detail += f"; the search was ended by {plan.limit_hit} after {plan.seconds:.0f} s"
    if plan.bound <= 0:
        return Answer("How sure?", "nothing is proven", detail)
    if plan.gap <= 0:
        return Answer("How sure?", "proven best", detail, True)
    return Answer("How sure?", near_best(plan.gap), detail, True if plan.gap <= CLOSE else None)


def _binds(plan: PipelinePlan) -> Answer:
    """The largest part of the step as the busiest mesh sees it; memory where it is full."""
    busy = [float(time) * TICK for time in plan.timeline.busy]
    busiest = max(range(len(busy)), key=busy.__getitem__)
    step, outer = plan.step_seconds, max(plan.outer_seconds)
    waiting = step - busy[busiest] - outer
    parts = {
        f"the work of mesh {busiest}": busy[busiest],
        "the controller" if plan.waits_for_controller else "waiting for other meshes": waiting,
        "what is done once a step": outer,
    }
    said = max(parts, key=parts.__getitem__)
    detail = ", ".join(f"{name} {share(seconds, step)}" for name, seconds in parts.items())
    full = [
        mesh
        for mesh, (peak, limit) in enumerate(zip(plan.peak_bytes, plan.memory_limit, strict=True))
        if peak > NEARLY_FULL * limit
    ]
    if full:
        detail += f"; memory is nearly full on {', '.join(f'mesh {mesh}' for mesh in full)}"
    return Answer("What binds?", said, detail)


def _helps(plan: PipelinePlan, gains: Sequence[Gain]) -> Answer:
    question = "What would help most?"
    told = [
        f"{gain.change} ({_percent(plan, gain.step_seconds)})"
        for gain in gains
        if _saved(plan, gain.step_seconds) >= NOTHING
    ]
    one = plan.one_mesh
    if plan.loses and one is not None and one.step_seconds is not None:
        detail = f"--machine {one.machine} saves {_percent(plan, one.step_seconds)}"
        return Answer(question, "all chips as one mesh", "; then ".join([detail, *told[:1]]), False)
    if not told:
        return Answer(question, "no part of the machine by itself", "see the sensitivity")
    detail = f"saves {_percent(plan, gains[0].step_seconds)} of the step, the order as it is"
    return Answer(question, gains[0].change, "; then ".join([detail, *told[1:2]]))


def _saved(plan: PipelinePlan, seconds: float) -> float:
    return 1 - seconds / plan.step_seconds if plan.step_seconds > 0 else 0.0


def _percent(plan: PipelinePlan, seconds: float) -> str:
    return format_percent(_saved(plan, seconds))
