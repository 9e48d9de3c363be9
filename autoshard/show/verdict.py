"""A plan in six answers: which, does it fit, how fast, how sure, what binds, what would help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard.machine.improvements import OVERLAP
from autoshard.plan.fits import fits, needed_bytes, within
from autoshard.plan.plan import Plan
from autoshard.plan.text.moves import alike_moves, collective_name
from autoshard.plan.text.page import proof_text, share
from autoshard.plan.text.transfers import exposed_seconds
from autoshard.plan.work import work_of, work_texts
from autoshard.program.flops import is_matrix_op
from autoshard.show.profile import Profile
from autoshard.show.scheme_line import scheme_line
from autoshard.show.sensitivity import Gain
from autoshard.study.advice import Advice
from autoshard.study.measured_errors import measured_text
from autoshard.units import format_bytes, format_gap, format_percent, format_seconds

NEARLY_FULL = 0.95
"""From this share of the memory limit on, memory is named among what binds."""
NOTHING, WORTH = 5e-4, 0.01
"""A gain below the first share of the step is none; one below the second is no news."""
CLOSE = 0.05
"""A gap up to this is good news: other plans that are found by hand differ by more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, the answer in a word or two, the figures behind it, and whether it is good."""

    question: str
    said: str
    detail: str
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answers, and one line that says them all."""

    line: str
    answers: tuple[Answer, ...]


def verdict(
    plan: Plan,
    found: Profile | None = None,
    gains: Sequence[Gain] = (),
    verification: Mapping[str, Any] | None = None,
    advice: Sequence[Advice] = (),
) -> Verdict:
    """The verdict on a plan.

    Args:
      plan: whose figures are told.
      found: the plan op by op, where the program is known.
      gains: what changes of the machine bring, the best first.
      verification: what `autoshard verify --json` printed, if it was run.
      advice: what can be done about the step, the best first (`autoshard.study.advice`).
    """
    answers = (
        _which(plan, found),
        _fits(plan),
        _fast(plan, found),
        _sure(plan, verification),
        _binds(plan, gains),
        _helps(plan, gains, advice),
    )
    which, room, fast, sure, binds, helps = answers
    free = plan.memory_limit - needed_bytes(plan.estimate)
    memory = (
        f"fits, with {format_bytes(free)} to spare"
        if room.good
        else f"does not fit: {format_bytes(-free)} too much"
    )
    line = f"{memory}; {fast.said} a step; {sure.said}; bound by {binds.said}"
    if found is not None:
        line = f"{which.said}: {line}"
    if (best := _best(plan, advice)) is not None:
        if best.saved(plan) >= WORTH:
            line += f"; {best.what} would save {format_percent(best.saved(plan))}"
    elif _more_memory(plan, gains) is None and gains and _gain(plan, gains[0]) >= NOTHING:
        line += f"; {helps.said} would save {_saved(plan, gains[0])}"
    return Verdict(f"{line[0].upper()}{line[1:]}.", answers)


def hardware_utilisation(found: Profile) -> float:
    """FLOP of matrix products that the step computes, over the matrix units' peak in its time.

    At their dtypes' peaks on all chips, with what is computed again for the backward pass
    (`jax.checkpoint`), which MFU leaves out.
    """
    program, chip = found.program, found.machine.chip
    busy = 0.0
    for op in program.ops:
        if is_matrix_op(op.primitive):
            values = [v for v in (*op.inputs, *op.outputs) if v >= 0]
            dtype = program.values[values[0]].dtype if values else "float32"
            busy += op.product_flops * op.trips * op.weight / chip.matmul_flops(dtype)
    step = found.plan.estimate.step_seconds
    return busy / found.machine.chips / step if step > 0 else 0.0


def _which(plan: Plan, found: Profile | None) -> Answer:
    said = ("" if found is None else scheme_line(found)) or f"mesh {plan.mesh}"
    fitting = [
        (row.step_seconds, row.name)
        for row in plan.baselines
        if row.step_seconds is not None and within(row.peak_bytes or 0, plan.memory_limit)
    ]
    step = plan.estimate.step_seconds
    if not fitting or step <= 0:
        return Answer("Which plan?", said, "no well-known scheme that fits was priced")
    seconds, name = min(fitting)
    ratio = seconds / step
    faster = f"{format_percent(ratio - 1)} faster than"
    if ratio > 1.1:
        faster = f"{ratio:.2f} times as fast as"
    elif abs(ratio - 1) < NOTHING:
        faster = "as fast as"
    detail = f"{faster} {name}, the best well-known scheme that fits on this mesh"
    return Answer("Which plan?", said, detail, True if ratio > 1.01 else None)


def _fits(plan: Plan) -> Answer:
    peak, limit = needed_bytes(plan.estimate), plan.memory_limit
    good = fits(plan.estimate, limit)
    part = share(peak, limit) if 0 < limit < float("inf") else "-"
    detail = f"{format_bytes(peak)} of {format_bytes(limit)} per device at the peak ({part})"
    return Answer("Does it fit?", "yes" if good else "no", detail, good)


def _fast(plan: Plan, found: Profile | None) -> Answer:
    estimate = plan.estimate
    detail = (
        f"a step; {format_seconds(estimate.lower_seconds)} if every collective were hidden, "
        f"{format_seconds(estimate.upper_seconds)} if none"
    )
    work = plan.work
    if work is None and found is not None:
        work = work_of(found.program, (found.machine,))
    chips = math.prod(plan.mesh.sizes)
    detail = "; ".join([detail, *work_texts(work, estimate.step_seconds, chips)])
    if found is not None and work is not None:
        busy = hardware_utilisation(found)
        if busy > 1.01 * work.utilisation(estimate.step_seconds):
            detail += f", {format_percent(busy)} with what is computed again"
    if plan.compiled is not None:
        seconds = format_seconds(plan.compiled["step_seconds"])
        detail += f"; compiled by XLA:{plan.compiled['compiler'].upper()}: {seconds}"
    return Answer("How fast?", format_seconds(estimate.step_seconds), detail)


def _sure(plan: Plan, verification: Mapping[str, Any] | None) -> Answer:
    proof, detail = plan.proof, proof_text(plan)
    if proof.bound <= 0:
        said, good = "nothing is proven", None
    elif proof.status == "optimal" or proof.gap <= 0:
        said, good = "proven best", True
    else:
        said, good = near_best(proof.gap), True if proof.gap <= CLOSE else None
    detail += f"; {measured_text(plan.machine)}"
    return verified(Answer("How sure?", said, detail, good), verification)


def near_best(gap: float) -> str:
    """How near a plan is to the best one, for a gap that is open."""
    return f"within {format_gap(gap).removeprefix('< ')} of the best"


def verified(sure: Answer, verification: Mapping[str, Any] | None) -> Answer:
    """How sure a plan is, with what the judges of `autoshard verify` said of it."""
    if verification is None:
        return sure
    verdicts = verification.get("verdicts", ())
    failed = [one["judge"] for one in verdicts if one["agrees"] is False]
    agreed = [one["judge"] for one in verdicts if one["agrees"]]
    if failed:
        return replace(sure, said=f"refuted by {', '.join(failed)}", good=False)
    return replace(
        sure, detail=f"{sure.detail}; verified: {', '.join(agreed) or 'nothing was run'}"
    )


def _binds(plan: Plan, gains: Sequence[Gain]) -> Answer:
    # With the machine known, what the step is most sensitive to; else the larger part of it.
    estimate = plan.estimate
    exposed, moved = exposed_seconds(plan)
    detail = f"{share(estimate.compute_seconds, estimate.step_seconds)} of the step is compute"
    said = "compute"
    if moved > 0:
        hidden = share(moved, estimate.step_seconds)
        detail += f", {hidden} transfers to the host and back that compute does not hide"
    if moved > max(estimate.compute_seconds, exposed):
        said = "transfers to the host and back"
    if exposed > 0 and plan.moves:
        detail += (
            f", {share(exposed, estimate.step_seconds)} collectives that compute does not hide"
        )
        by_name: dict[str, float] = {}
        for group in alike_moves(plan.moves):
            name = collective_name(group[0].kind, group[0].axes, plan.mesh.names)
            by_name[name] = by_name.get(name, 0.0) + sum(move.exposed_seconds for move in group)
        dearest = max(by_name, key=lambda name: by_name[name])
        detail += f" ({dearest}: {share(by_name[dearest], estimate.step_seconds)})"
        if exposed > max(estimate.compute_seconds, moved):
            said = dearest
    parts = [gain.part for gain in gains if gain.part != OVERLAP and _gain(plan, gain) >= NOTHING]
    if parts:
        said = parts[0]
    if plan.estimate.peak_bytes > NEARLY_FULL * plan.memory_limit:
        detail += f"; memory is full to {share(plan.estimate.peak_bytes, plan.memory_limit)}"
    return Answer("What binds?", said, detail)


def _best(plan: Plan, advice: Sequence[Advice]) -> Advice | None:
    """The first that fits and saves chip-seconds."""
    saving = (one for one in advice if one.fits and one.saved(plan) >= NOTHING)
    return next(saving, None)


def _helps(plan: Plan, gains: Sequence[Gain], advice: Sequence[Advice]) -> Answer:
    question, estimate = "What would help most?", plan.estimate
    if (first := _best(plan, advice)) is not None:
        others = [one for one in advice if one is not first and one.fits]
        detail = f"{advised(plan, first)}: {first.how}"
        if others:
            detail += f"; then {others[0].what} ({advised(plan, others[0])})"
        return Answer(question, first.what, detail)
    if (larger := _more_memory(plan, gains)) is not None:
        return Answer(question, *larger)
    if not gains:
        exposed = estimate.step_seconds - estimate.lower_seconds
        most = share(exposed, estimate.step_seconds)
        detail = f"hiding every collective would save {most} at most"
        return Answer(question, "not known without the program", detail)
    best, *others = gains
    if _gain(plan, best) < NOTHING:
        return Answer(question, "no part of the machine by itself", "see the sensitivity")
    detail = f"saves {_saved(plan, best)} of the step with the plan as it is"
    if others and _gain(plan, others[0]) >= NOTHING:
        detail += f"; then {others[0].change} ({_saved(plan, others[0])})"
    return Answer(question, best.change, detail)


def _more_memory(plan: Plan, gains: Sequence[Gain]) -> tuple[str, str] | None:
    """What a scheme would save that is faster and does not fit, where that is the largest gain."""
    step = plan.estimate.step_seconds
    larger = [
        (row.step_seconds, row.peak_bytes, row.name)
        for row in plan.baselines
        if row.step_seconds is not None
        and row.peak_bytes is not None
        and not within(row.peak_bytes, plan.memory_limit)
    ]
    seconds, size, name = min(larger, default=(step, 0, ""))
    best = max([NOTHING, *(_gain(plan, gain) for gain in gains)])
    if step <= 0 or 1 - seconds / step <= best:
        return None
    detail = (
        f"{name} with {format_bytes(size)} per device takes {format_seconds(seconds)}, "
        f"{format_percent(1 - seconds / step)} less; what fits may come near to it with "
        "--remat search, --accumulate 1,2,4 or more chips"
    )
    return "more memory", detail


def advised(plan: Plan, one: Advice) -> str:
    """What a piece of advice comes to, in a few words."""
    saved = one.saved(plan)
    if one.chips > 1 and one.seconds > 0:
        faster = plan.estimate.step_seconds / one.seconds
        return f"{faster:.2f} times as fast, {chip_seconds(plan, one)} chip-seconds"
    return f"saves {format_percent(saved)} of the seconds for the same work"


def chip_seconds(plan: Plan, one: Advice) -> str:
    """How many chip-seconds more or less the plan's work takes with advice: `12.5 % less`."""
    saved = one.saved(plan)
    return f"{format_percent(abs(saved))} {'less' if saved >= 0 else 'more'}"


def _gain(plan: Plan, gain: Gain) -> float:
    step = plan.estimate.step_seconds
    return (step - gain.step_seconds) / step if step > 0 else 0.0


def _saved(plan: Plan, gain: Gain) -> str:
    return format_percent(_gain(plan, gain))
