"""A timeline as text and as SVG.

Text has two lines a mesh, one column for each slice of time: what runs in the middle of it (F, B,
W, X for BW, a dot for nothing), and the last digit of its microbatch:

    mesh 0  FFFF...BBWW
            0123   0000

The SVG has a row a mesh with the microbatch in every task, later stages of a mesh in lighter
colours, and below each row the memory taken, up to the limit or the largest peak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from xml.sax.saxutils import escape

from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.timeline import Run, Timeline, memory_over_time
from autoshard.units import format_percent, visible

LETTERS = {"F": "F", "B": "B", "W": "W", "BW": "X"}
COLOURS = {
    "F": ("#4c78a8", "#9ecae9"),
    "B": ("#f2a93b", "#ffd8a1"),
    "W": ("#54a24b", "#a6d69f"),
    "BW": ("#b279a2", "#d8b5d1"),
}
NAMES = {"F": "forward", "B": "input gradient", "W": "weight gradient", "BW": "both gradients"}
LEGEND = (
    "F forward, B input gradient, W weight gradient, X both; below, the microbatch's last digit"
)
"""Of `draw_text`."""
ROW, MEMORY, LEFT, TOP = 22, 14, 70, 34
CHARACTER = 5.5
"""Width of a digit, in pixels: a task that is narrower than its number goes without."""


def draw_text(timeline: Timeline, columns: int = 100) -> str:
    """The timeline as text, that many columns wide for all of its time."""
    lines = []
    slice_time = timeline.makespan / columns
    for mesh, runs in enumerate(timeline.runs):
        kinds, digits = [" "] * columns, [" "] * columns
        for column in range(columns):
            run = _running(runs, (column + 0.5) * slice_time)
            kinds[column] = "." if run is None else LETTERS[run.task.kind]
            digits[column] = " " if run is None else str(run.task.microbatch % 10)
        label = f"mesh {mesh:<3} "
        lines += [label + "".join(kinds), (" " * len(label) + "".join(digits)).rstrip()]
    return "\n".join(lines) + "\n"


def plain(time: float) -> str:
    """A time in the unit of its instance."""
    return f"{time:.12g}"


def draw_svg(
    instance: Instance,
    timeline: Timeline,
    width: int = 1400,
    *,
    written: Callable[[float], str] = plain,
) -> str:
    """The timeline as an SVG of that many pixels; `written` says how times are written."""
    scale = (width - LEFT - 10) / timeline.makespan
    height = TOP + len(timeline.runs) * (ROW + MEMORY) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="9">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(instance, timeline, written),
    ]
    most = max([*timeline.peak_memory, *(instance.memory_limit or ())], default=0) or 1
    for mesh, runs in enumerate(timeline.runs):
        top = TOP + mesh * (ROW + MEMORY)
        parts.append(f'<text x="6" y="{top + 14}" font-size="11">mesh {mesh}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{width - LEFT - 10}" height="{ROW - 2}" '
            'fill="#eeeeee"/>'
        )
        parts += _tasks(instance, runs, top, scale, written)
        parts.append(_memory_line(instance, runs, top + ROW + MEMORY - 4, scale, most))
    parts.append(
        f'<text x="{LEFT}" y="{height - 8}" font-size="10">0</text>'
        f'<text x="{width - 10}" y="{height - 8}" font-size="10" text-anchor="end">'
        f"{written(timeline.makespan)}</text>"
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _running(runs: tuple[Run, ...], time: float) -> Run | None:
    low, high = 0, len(runs)
    while low < high:  # the first that ends after this time
        middle = (low + high) // 2
        low, high = (low, middle) if runs[middle].end > time else (middle + 1, high)
    return runs[low] if low < len(runs) and runs[low].start <= time else None


def _legend(
    instance: Instance, timeline: Timeline, written: Callable[[float], str]
) -> Iterator[str]:
    x = LEFT
    kinds = {run.task.kind for runs in timeline.runs for run in runs}
    for kind in (kind for kind in COLOURS if kind in kinds):
        yield f'<rect x="{x}" y="8" width="12" height="12" fill="{COLOURS[kind][0]}"/>'
        yield f'<text x="{x + 16}" y="18" font-size="11">{kind}, {NAMES[kind]}</text>'
        x += 130
    known = escape(visible(instance.name))
    yield (
        f'<text x="{x}" y="18" font-size="11">{known} makespan {written(timeline.makespan)}, '
        f"span {written(timeline.span)}, bubble {format_percent(timeline.bubble)}</text>"
    )


def _tasks(
    instance: Instance,
    runs: tuple[Run, ...],
    top: int,
    scale: float,
    written: Callable[[float], str],
) -> Iterator[str]:
    for task, start, end in runs:
        turn = instance.on(instance.placement[task.stage]).index(task.stage)
        colour = COLOURS[task.kind][min(turn, 1)]
        x, wide = LEFT + start * scale, (end - start) * scale
        label = str(task.microbatch)
        yield (
            f'<rect x="{x:.2f}" y="{top}" width="{wide:.2f}" height="{ROW - 2}" fill="{colour}" '
            f'stroke="white" stroke-width="0.5"><title>{task}: {written(start)} to '
            f"{written(end)}</title></rect>"
        )
        if wide >= CHARACTER * len(label) + 2:
            yield f'<text x="{x + wide / 2:.2f}" y="{top + 13}" text-anchor="middle">{label}</text>'


def _memory_line(
    instance: Instance, runs: tuple[Run, ...], base: float, scale: float, most: float
) -> str:
    points, height = [f"{LEFT},{base}"], 0.0
    for time, taken in memory_over_time(instance, runs):
        x = LEFT + time * scale
        points.append(f"{x:.2f},{base - height:.2f}")
        height = (MEMORY - 4) * taken / most
        points.append(f"{x:.2f},{base - height:.2f}")
    return (
        f'<polyline points="{" ".join(points)}" fill="#dddddd" stroke="#888888" '
        'stroke-width="0.7"/>'
    )
