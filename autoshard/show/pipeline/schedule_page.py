"""The report of `autoshard schedule` as one HTML file: an order of tasks by itself.

Times and amounts of memory are in the units of the problem.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.plan.text.page import share
from autoshard.show.details import gains_table
from autoshard.show.document import document, head, versions
from autoshard.show.html import Cell, Column, Markup, element, join, table
from autoshard.show.pipeline.gains import order_gains
from autoshard.show.pipeline.gantt import Picture, gantt, memory_chart
from autoshard.show.pipeline.verdict import CLOSE
from autoshard.show.plots import Bar, bars, legend
from autoshard.show.sections import facts
from autoshard.show.sensitivity import Gain
from autoshard.show.sweep.page import number_cell
from autoshard.show.verdict import NEARLY_FULL, NOTHING, Answer, near_best
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.named import NAMED
from autoshard.solve.schedule.optimise.outcome import ScheduleOutcome
from autoshard.solve.schedule.optimise.outcome_json import Considered
from autoshard.solve.schedule.timeline import Timeline, simulate
from autoshard.units import counted, format_percent


def schedule_page(outcome: ScheduleOutcome, considered: Sequence[Considered]) -> str:
    """The whole report as an HTML document.

    Args:
      outcome: with an order.
      considered: every placement of the same work.

    Raises:
      ScheduleError: the outcome has no order.
    """
    instance, timeline, order = outcome.instance, outcome.timeline, outcome.order
    if timeline is None or order is None:
        raise ScheduleError("this schedule", ["it has no order; give the search more time"])
    end = float(timeline.makespan)
    picture = Picture(instance, timeline, number, number, number, end, fused=_fused(timeline))
    gains = order_gains(instance, order, outcome.objective)
    answers = (
        _fits(instance, timeline),
        _fast(outcome, timeline),
        _sure(outcome),
        _binds(outcome, timeline),
        _helps(outcome, gains),
    )
    fits, fast, sure, binds, _ = answers
    line = (
        f"{'Keeps its memory limit' if fits.good else 'No memory limit was given'}; "
        f"{outcome.objective} {fast.said}; {sure.said}; bound by {binds.said}."
    )
    body = [
        ("schedule", "Schedule", gantt(picture)),
        ("named", "Beside schedules that go by a name", _named(outcome, timeline)),
        ("meshes", "Time and memory of every mesh", _meshes(instance, timeline)),
        ("memory", "Memory over the step", _memory(instance, timeline, picture)),
        ("stages", "Stages", _stages(instance)),
        ("sensitivity", "Sensitivity", _sensitivity(outcome, gains)),
        ("considered", "What was considered", _considered(considered)),
        ("versions", "Versions of this report", facts(list(versions()))),
    ]
    name = f"Schedule {instance.name}".strip()
    about = (
        f"{counted(instance.stages, 'stage')} on {counted(instance.meshes, 'mesh')}, "
        f"{counted(instance.microbatches, 'microbatch')}; times and memory in the units "
        "of the problem"
    )
    return document(name, head(name, about, line, answers), body)


def number(value: float) -> str:
    """A time or an amount of memory in the problem's own unit."""
    return f"{value:,.6g}"


def _fused(timeline: Timeline) -> bool:
    """Whether no task is a weight gradient of its own."""
    return not any(run.task.kind == "W" and run.end > run.start for r in timeline.runs for run in r)


def _fits(instance: Instance, timeline: Timeline) -> Answer:
    limits = instance.memory_limit
    peaks = [float(peak) for peak in timeline.peak_memory]
    most = max(range(len(peaks)), key=peaks.__getitem__)
    if limits is None:
        detail = f"the most is {number(peaks[most])}, on mesh {most}; nothing limits it"
        return Answer("Does it fit?", "no limit", detail)
    shares = [
        peak / float(limit) if limit else 1.0 for peak, limit in zip(peaks, limits, strict=True)
    ]
    fullest = max(range(len(shares)), key=shares.__getitem__)
    detail = (
        f"the fullest is mesh {fullest}: {number(peaks[fullest])} of "
        f"{number(float(limits[fullest]))} ({format_percent(shares[fullest])})"
    )
    return Answer("Does it fit?", "yes", detail, True)


def _fast(outcome: ScheduleOutcome, timeline: Timeline) -> Answer:
    other = "span" if outcome.objective == "makespan" else "makespan"
    detail = (
        f"the {outcome.objective}; the {other} is {number(float(timeline.value(other)))}; meshes "
        f"wait {format_percent(timeline.bubble)} of the time"
    )
    return Answer("How fast?", number(float(timeline.value(outcome.objective))), detail)


def _sure(outcome: ScheduleOutcome) -> Answer:
    detail = f"no order takes less than {number(float(outcome.bound))}"
    if outcome.limit_hit is not None:
        detail += f"; the search was ended by {outcome.limit_hit} after {outcome.seconds:.0f} s"
    if outcome.gap <= 0:
        return Answer("How sure?", "proven best", detail, True)
    return Answer(
        "How sure?", near_best(outcome.gap), detail, True if outcome.gap <= CLOSE else None
    )


def _binds(outcome: ScheduleOutcome, timeline: Timeline) -> Answer:
    value = float(timeline.value(outcome.objective))
    busy = [float(time) for time in timeline.busy]
    busiest = max(range(len(busy)), key=busy.__getitem__)
    waits = value - busy[busiest]
    said = f"the work of mesh {busiest}" if busy[busiest] >= waits else "waiting for other meshes"
    detail = f"mesh {busiest} works {share(busy[busiest], value)} of it"
    limits = outcome.instance.memory_limit
    if limits is not None:
        full = [
            f"mesh {mesh}"
            for mesh, (peak, limit) in enumerate(zip(timeline.peak_memory, limits, strict=True))
            if peak > NEARLY_FULL * limit
        ]
        detail += f"; memory is nearly full on {', '.join(full)}" if full else ""
    return Answer("What binds?", said, detail)


def _helps(outcome: ScheduleOutcome, gains: Sequence[Gain]) -> Answer:
    question, value = "What would help most?", float(outcome.value or 0.0)
    told = [
        (gain.change, 1 - gain.step_seconds / value)
        for gain in gains
        if value > 0 and 1 - gain.step_seconds / value >= NOTHING
    ]
    if not told:
        return Answer(question, "no mesh and no link by itself", "the order as it is")
    (change, saved), *others = told
    detail = f"saves {format_percent(saved)}, the order as it is"
    if others:
        detail += f"; then {others[0][0]} ({format_percent(others[0][1])})"
    return Answer(question, change, detail)


def _named(outcome: ScheduleOutcome, timeline: Timeline) -> Markup:
    """What the schedules with a name come to on the same problem."""
    instance = outcome.instance
    rows: list[Bar] = [
        Bar("this order", ((3, float(outcome.value or 0)),), _value(outcome, timeline))
    ]
    lines: list[tuple[Cell | str, ...]] = []
    for name, make in NAMED.items():
        try:
            made = simulate(instance, make(instance))
        except ScheduleError as error:
            lines.append((name, Cell("-"), Cell("-"), error.faults[0]))
            continue
        value = float(made.value(outcome.objective))
        rows.append(Bar(name, ((0, value),), _value(outcome, made)))
        lines.append(
            (
                name,
                number_cell(value, "{:,.6g}"),
                Cell(format_percent(made.bubble), made.bubble),
                "",
            )
        )
    columns = [Column("schedule"), Column(outcome.objective, True), Column("waiting", True)]
    columns.append(Column("why not", words=True))
    named = [(3, "this order"), (0, "a schedule that goes by a name")]
    return join(legend(named), bars(rows), table(columns, lines, sorts=True))


def _value(outcome: ScheduleOutcome, timeline: Timeline) -> str:
    value, own = float(timeline.value(outcome.objective)), float(outcome.value or 1.0)
    return f"{number(value)} ({value / own:.3f})"


def _meshes(instance: Instance, timeline: Timeline) -> Markup:
    limits = instance.memory_limit
    columns = [Column("mesh"), Column("stages"), Column("works", True), Column("waits", True)]
    columns += [Column("most memory", True), Column("limit", True)]
    rows = [
        (
            str(mesh),
            ", ".join(map(str, instance.on(mesh))),
            number_cell(float(busy), "{:,.6g}"),
            number_cell(float(timeline.makespan - busy), "{:,.6g}"),
            number_cell(float(timeline.peak_memory[mesh]), "{:,.6g}"),
            number_cell(None if limits is None else float(limits[mesh]), "{:,.6g}"),
        )
        for mesh, busy in enumerate(timeline.busy)
    ]
    return table(columns, rows, sorts=True)


def _memory(instance: Instance, timeline: Timeline, picture: Picture) -> Markup:
    blocks: list[Markup] = []
    for mesh, peak in enumerate(timeline.peak_memory):
        title = f"Mesh {mesh}: {number(float(peak))} at most"
        blocks += [element("h3", title), memory_chart(picture, mesh, ())]
    return join(*blocks)


def _stages(instance: Instance) -> Markup:
    columns = [Column("stage"), Column("mesh")]
    columns += [Column(name, True) for name in ("F", "B", "W", "F takes", "B changes", "W changes")]
    rows = [
        (
            str(stage),
            str(mesh),
            *(number_cell(float(instance.time(kind, stage)), "{:,.6g}") for kind in "FBW"),
            *(number_cell(float(instance.memory(kind, stage)), "{:,.6g}") for kind in "FBW"),
        )
        for stage, mesh in enumerate(instance.placement)
    ]
    return table(columns, rows, sorts=True)


def _sensitivity(outcome: ScheduleOutcome, gains: Sequence[Gain]) -> Markup:
    said = "The same order; the best one then takes at most that long."
    heads = "where one part is better", outcome.objective
    return gains_table(
        gains, float(outcome.value or 1.0), said, heads, lambda value: Cell(number(value), value)
    )


def _considered(considered: Sequence[Considered]) -> Markup | None:
    if len(considered) < 2:
        return None
    columns = [Column("problem", code=True), Column("value", True), Column("bound", True)]
    columns.append(Column("why it has none", words=True))
    rows = [
        (
            one.name,
            number_cell(one.value, "{:,.6g}"),
            number_cell(one.bound, "{:,.6g}"),
            one.note,
        )
        for one in considered
    ]
    return table(columns, rows, sorts=True)
