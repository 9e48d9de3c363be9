"""The sections of a report that need the program and the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autoshard.plan.plan import Plan
from autoshard.plan.text.page import share
from autoshard.plan.transfers import host_occupied
from autoshard.show.html import Cell, Column, Markup, element, join, table
from autoshard.show.memory import CLASSES, memory
from autoshard.show.operations import work
from autoshard.show.plots import Bar, bars, legend, stacked
from autoshard.show.profile import Profile
from autoshard.show.sections import arrows, bytes_cell, seconds_cell, transfers
from autoshard.show.sensitivity import Gain
from autoshard.show.verdict import chip_seconds
from autoshard.study.advice import Advice
from autoshard.units import format_bytes, format_percent, format_seconds

MOST_HOLDINGS, MOST_WORK, MOST_BARS = 40, 60, 10
ADVISED = (
    "Seconds are those for the work of the plan's step. What the evaluator prices keeps the plan's "
    "layouts, so that the best plan there takes at most that long; what was searched for is a plan "
    "of its own."
)


def memory_section(found: Profile) -> Markup:
    """Bytes by class over the step, and what is in memory at the peak."""
    plan, now = found.plan, memory(found)
    used = [k for k in range(len(CLASSES)) if now.curves[k].max(initial=0.0) > 0.5]
    at_peak = now.curves[:, now.peak]
    total = float(at_peak.sum())
    chart = stacked(now.curves, limit=plan.memory_limit, labels=_passes(found))
    shares = bars(
        [
            Bar(CLASSES[k], ((k, float(at_peak[k])),), _bytes(float(at_peak[k]), total))
            for k in sorted(used, key=lambda k: -at_peak[k])
            if at_peak[k] > 0.5
        ]
    )
    columns = [
        Column("class"),
        Column("made by, or path", code=True),
        Column("type", code=True),
        Column("how many", True),
        Column("per device", True),
    ]
    rows = [
        (
            row.kind,
            row.name,
            row.type,
            Cell(f"{row.count:,}", row.count),
            bytes_cell(row.bytes),
        )
        for row in now.holdings[:MOST_HOLDINGS]
    ]
    rest = now.holdings[MOST_HOLDINGS:]
    more = None
    if rest:
        held = format_bytes(sum(row.bytes for row in rest))
        more = element("p", f"And {len(rest):,} more, {held} together.", class_="soft")
    return join(
        element(
            "p",
            f"{format_bytes(plan.estimate.peak_bytes)} at the peak, of "
            f"{format_bytes(plan.memory_limit)}, in ",
            element("code", plan.estimate.peak_at),
            ". From left to right the operations as they run; the dashed line is the limit "
            "(where it is near), the thin one the peak.",
            _scheduled(plan),
        ),
        legend([(k, CLASSES[k]) for k in used]),
        chart,
        element("h3", "At the peak"),
        shares,
        table(columns, rows, sorts=True),
        more,
    )


def host_section(plan: Plan, found: Profile | None) -> Markup | None:
    """Bytes in the memory of the host over the step, and the transfers."""
    told = transfers(plan)
    if told is None or found is None:
        return told
    held = host_occupied(found.prices, plan.decisions)[None, :]
    host = found.machine.host
    limit = math.inf if host is None else host.bytes_per_chip
    about = "bytes in the memory of the host over the program points of a step"
    return join(stacked(held, limit=limit, labels=_passes(found), about=about), told)


def _scheduled(plan: Plan) -> str:
    """What the plan takes in its compiler's own order, where that is known."""
    size, seconds = plan.estimate.scheduled_bytes, plan.estimate.scheduled_seconds
    if size is None:
        return ""
    step = "" if seconds is None else f" and a step {format_seconds(seconds)}"
    return (
        f" In the order in which its compiler runs this plan it takes {format_bytes(size)}{step}."
    )


def _passes(found: Profile) -> list[tuple[float, str]]:
    """Names of the passes, in the middle of where they run."""
    ops = found.program.ops
    backward = [point for point, index in enumerate(found.order) if ops[index].backward]
    if not backward:
        return [(0.5, "the step")]
    first, last, end = backward[0], backward[-1], len(ops)
    spans = [("forward", 0, first), ("backward", first, last), ("update", last + 1, end)]
    return [((low + high) / 2 / end, name) for name, low, high in spans if high - low > end / 20]


def compute_section(found: Profile) -> Markup:
    """Where the seconds of compute go."""
    rows = work(found)
    total = sum(row.seconds for row in rows)
    columns = [
        Column("operation"),
        Column("seconds", True),
        Column("share", True),
        Column("times", True),
        Column("FLOP", True),
        Column("operands read -> results stored", code=True),
        Column("scope", code=True),
        Column("line", code=True),
    ]
    cells = [
        (
            row.primitive,
            seconds_cell(row.seconds),
            Cell(share(row.seconds, total), row.seconds),
            Cell(f"{row.times:,}", row.times),
            Cell(_flops(row.flops), row.flops),
            arrows(row.types),
            row.scope or "(top)",
            row.line,
        )
        for row in rows[:MOST_WORK]
    ]
    rest = rows[MOST_WORK:]
    more = None
    if rest:
        left = format_seconds(sum(row.seconds for row in rest))
        more = element("p", f"And {len(rest):,} more, {left} together.", class_="soft")
    by_primitive: dict[str, float] = {}
    for row in rows:
        by_primitive[row.primitive] = by_primitive.get(row.primitive, 0.0) + row.seconds
    ranked = sorted(by_primitive.items(), key=lambda item: -item[1])
    shown = [Bar(name, ((0, took),), _part(took, total)) for name, took in ranked[:MOST_BARS]]
    others = sum(took for _, took in ranked[MOST_BARS:])
    if others > 0:
        shown.append(Bar("all others", ((6, others),), _part(others, total)))
    return join(bars(shown), table(columns, cells, sorts=True), more)


def _flops(count: float) -> str:
    """Three digits with a decimal prefix: `1.97 P`, `512`."""
    power = min(max(int(math.log10(count) // 3), 0), 6) if count > 0 else 0
    return f"{count / 1000**power:,.3g} {('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}".rstrip()


def _bytes(count: float, total: float) -> str:
    return f"{format_bytes(count)} ({share(count, total)})"


def _part(seconds: float, total: float) -> str:
    return f"{format_seconds(seconds)} ({share(seconds, total)})"


def sensitivity_section(plan: Plan, gains: Sequence[Gain]) -> Markup:
    """What the step would take on machines that are a little better."""
    said = "The same plan, priced anew; the best plan on such a machine takes at most that long."
    heads = "on a machine with", "step"
    return gains_table(gains, plan.estimate.step_seconds, said, heads, seconds_cell)


def gains_table(
    gains: Sequence[Gain],
    now: float,
    said: str,
    heads: tuple[str, str],
    cell: Callable[[float], Cell],
) -> Markup:
    """What is said of changes, and a row for each: what it comes to, and what part it saves.

    Args:
      gains: the changes.
      now: what it is without any, in the unit of `Gain.step_seconds`.
      said: above the table.
      heads: of the columns of changes and of what they come to.
      cell: of what a change comes to.
    """
    columns = [Column(heads[0]), Column(heads[1], True), Column("saved", True)]
    rows = []
    for gain in gains:
        saved = 1 - gain.step_seconds / now if now > 0 else 0.0
        rows.append(
            (gain.change, cell(gain.step_seconds), Cell(format_percent(saved, ".2f"), saved))
        )
    return join(element("p", said, class_="soft"), table(columns, rows, sorts=True))


def advice_section(plan: Plan, advice: Sequence[Advice]) -> Markup | None:
    """A row for each piece of advice; None where there is none.

    Args:
      plan: that it is about.
      advice: what can be done, the best first.
    """
    if not advice:
        return None
    columns = [
        Column("what", words=True),
        Column("how", code=True),
        Column("seconds", True),
        Column("times as fast", True),
        Column("chip-seconds", True),
        Column("peak", True),
        Column("fits"),
        Column("priced by", words=True),
    ]
    step = plan.estimate.step_seconds
    rows = [
        (
            one.what,
            one.how,
            seconds_cell(one.seconds),
            Cell(f"{step / one.seconds:.2f}", step / one.seconds) if one.seconds > 0 else "-",
            Cell(chip_seconds(plan, one), one.saved(plan)),
            bytes_cell(one.peak_bytes),
            "yes" if one.fits else "no",
            one.priced,
        )
        for one in advice
    ]
    return join(element("p", ADVISED, class_="soft"), table(columns, rows, sorts=True))
