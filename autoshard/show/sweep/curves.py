"""Lines through points, as SVG in the colours of the page, for a wide screen and for a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.show.html import Markup, element
from autoshard.show.sweep.pareto import COLOURS, MARKERS, SOFT, drawn, plain_ticks


@dataclass(frozen=True, slots=True)
class Curve:
    """A line with its name; `said` has the words that a pointer over each point shows."""

    name: str
    points: tuple[tuple[float, float], ...]
    said: tuple[str, ...] = ()


def curves(lines: Sequence[Curve], across: str, up: str, *, limit: float | None = None) -> Markup:
    """The lines on logarithmic axes; what is beyond `limit` across lies behind a dashed line."""

    said = {
        f"of-{number}-{place}": words
        for number, line in enumerate(lines)
        for place, words in enumerate(line.said)
    }

    def plot(figure: Any, wide: bool) -> None:
        axes = figure.add_subplot()
        axes.set_axisbelow(True)
        axes.grid(visible=True)
        for number, line in enumerate(lines):
            look = {
                "color": COLOURS[number % len(COLOURS)],
                "marker": MARKERS[number % len(MARKERS)],
            }
            axes.plot(*zip(*line.points, strict=True), label=line.name, linewidth=1.2, **look)
            for place, (x, y) in enumerate(line.points if line.said else ()):
                name, colour = f"of-{number}-{place}", look["color"]
                axes.scatter([x], [y], gid=name, marker=look["marker"], color=colour, zorder=3)
        if limit is not None:
            axes.axvline(limit, color=SOFT, linestyle="--", linewidth=1)
        axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
        for axis in (axes.xaxis, axes.yaxis):
            plain_ticks(axis)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.legend(loc="outside upper left", ncols=3 if wide else 1, fontsize=10)

    return element(
        "div", *drawn(plot, said), class_="plot", role="img", aria_label=f"{up} by {across}"
    )
