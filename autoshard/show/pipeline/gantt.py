"""A pipeline's schedule as a picture: a row a mesh, a block a task, the microbatch in it.

Later stages of a mesh are paler. On a narrow screen the picture keeps a width at which its blocks
can be told apart, and scrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.show.html import Markup, element, join
from autoshard.show.plots import legend, round_ticks, stacked
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.timeline import Timeline, memory_over_time

WIDTH, LEFT, ROW, TOP, BOTTOM = 1100, 62, 30, 6, 26
DIGIT = 6.2
"""Width of a digit, in pixels: a task that is narrower than its number goes without."""
COLOURS = {"F": 0, "B": 1, "W": 2, "BW": 4}
NAMES = {"F": "forward", "B": "input gradient", "W": "weight gradient", "BW": "backward"}
AFTER = 6
"""The colour of what is done after the loop."""
LAST = 0.97
"""A tick from this part of the width on has its text to its left."""
MEMORY_COLUMNS = 500
"""Memory is drawn in so many columns; each shows the most in it."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn.

    Attributes:
      instance, timeline: the problem, and when its tasks run.
      time, amount: how the instance's time and memory are written.
      tick: how a round time is written, all in one unit.
      after: by mesh, what is done when the loop is over, in the instance's time; or nothing.
      end: when the step is over, in the instance's time.
      fused: whether B is the whole backward pass.
    """

    instance: Instance
    timeline: Timeline
    time: Callable[[float], str]
    amount: Callable[[float], str]
    tick: Callable[[float], str]
    end: float
    after: tuple[float, ...] = ()
    fused: bool = False


def gantt(picture: Picture) -> Markup:
    """The schedule: who works when, on what."""
    timeline = picture.timeline
    scale = (WIDTH - LEFT) / (picture.end or 1.0)
    low = TOP + ROW * len(timeline.runs)
    shapes: list[Markup] = []
    for mesh in range(len(timeline.runs)):
        top = TOP + ROW * mesh
        shapes.append(element("text", f"mesh {mesh}", x=0, y=top + 18, class_="label"))
        shapes.append(
            element("rect", x=LEFT, y=top, width=WIDTH - LEFT, height=ROW - 4, class_="idle")
        )
        shapes += _tasks(picture, mesh, top, scale)
    for part, text in ticks(picture):
        x = round(LEFT + (WIDTH - LEFT) * part, 2)
        anchor = "start" if part == 0 else "end" if part > LAST else "middle"
        shapes.append(element("line", x1=x, x2=x, y1=low, y2=low + 5, class_="peak"))
        shapes.append(element("text", text, x=x, y=low + 19, text_anchor=anchor, class_="label"))
    drawing = element(
        "svg",
        *shapes,
        viewBox=f"0 0 {WIDTH} {low + BOTTOM}",
        role="img",
        aria_label="tasks of every mesh over time",
    )
    return join(legend(_key(picture)), element("div", drawing, class_="gantt", tabindex="0"))


def ticks(picture: Picture) -> list[tuple[float, str]]:
    """Round times in one unit, each at its part of the step."""
    if picture.end <= 0:
        return [(0.0, picture.tick(0.0))]
    step, most = round_ticks(picture.end, False)
    times = [step * k for k in range(most + 1) if step * k <= picture.end]
    return [(time / picture.end, picture.tick(time)) for time in times]


def _key(picture: Picture) -> list[tuple[int, str]]:
    kinds = {
        _kind(picture, run.task.kind)
        for runs in picture.timeline.runs
        for run in runs
        if run.end > run.start
    }
    key = [(COLOURS[kind], NAMES[kind]) for kind in COLOURS if kind in kinds]
    return key + ([(AFTER, "once a step: updates")] if any(picture.after) else [])


def _kind(picture: Picture, kind: str) -> str:
    return "BW" if picture.fused and kind == "B" else kind


def _tasks(picture: Picture, mesh: int, top: float, scale: float) -> Iterator[Markup]:
    instance = picture.instance
    stages = instance.on(mesh)
    for task, start, end in picture.timeline.runs[mesh]:
        if end <= start:
            continue
        kind = _kind(picture, task.kind)
        x, wide = LEFT + start * scale, (end - start) * scale
        paler = " later" if stages.index(task.stage) else ""
        told = (
            f"{NAMES[kind]} of stage {task.stage}, microbatch {task.microbatch}: "
            f"{picture.time(float(start))} to {picture.time(float(end))}"
        )
        yield _block(x, top, wide, f"f{COLOURS[kind]}{paler}", told)
        label = str(task.microbatch)
        if wide >= DIGIT * len(label) + 3:
            middle = round(x + wide / 2, 2)
            yield element("text", label, x=middle, y=top + 17, text_anchor="middle", class_="on")
    if picture.after and picture.after[mesh] > 0:
        start = picture.end - max(picture.after)
        until = start + picture.after[mesh]
        told = f"once a step: {picture.time(start)} to {picture.time(until)}"
        x, wide = LEFT + start * scale, picture.after[mesh] * scale
        yield _block(x, top, wide, f"f{AFTER}", told)


def _block(x: float, top: float, wide: float, colour: str, told: str) -> Markup:
    return element(
        "rect",
        element("title", told),
        x=round(x, 2),
        y=top,
        width=round(wide, 2),
        height=ROW - 4,
        class_=colour,
    )


def memory_chart(picture: Picture, mesh: int, always: Sequence[tuple[str, float]]) -> Markup:
    """Memory of one mesh over the step: what it always holds, and what microbatches keep.

    `always` are names and amounts; they come first.
    """
    taken = memory_columns(picture, mesh)
    curves = np.vstack([np.full((len(always), taken.size), 1.0), taken])
    curves[: len(always)] *= np.array([amount for _, amount in always]).reshape(-1, 1)
    limits = picture.instance.memory_limit
    limit = np.inf if limits is None else sum(amount for _, amount in always) + limits[mesh]
    names = [*(name for name, _ in always), "kept by microbatches"]
    return join(
        legend(list(enumerate(names))) if len(names) > 1 else None,
        stacked(
            curves,
            limit=float(limit),
            labels=ticks(picture),
            amount=picture.amount,
            about=f"memory of mesh {mesh} over the step",
        ),
    )


def memory_columns(picture: Picture, mesh: int) -> NDArray[np.float64]:
    """What microbatches keep on a mesh: of every column of time the most."""
    most = np.zeros(MEMORY_COLUMNS)
    scale = MEMORY_COLUMNS / (picture.end or 1.0)
    before, height = 0, 0.0
    for time, taken in memory_over_time(picture.instance, picture.timeline.runs[mesh]):
        at = min(int(time * scale), MEMORY_COLUMNS - 1)
        most[before : at + 1] = np.maximum(most[before : at + 1], height)
        before, height = at, float(taken)
        most[at] = max(most[at], height)
    most[before + 1 :] = np.maximum(most[before + 1 :], height)
    return most
