"""Plots that fit any width: shapes are stretched, words stay words.

Bars are boxes of HTML; curves are SVG without text, stretched by `preserveAspectRatio="none"`, with
the labels beside them in HTML. Colours are the classes `f0` to `f7`, which follow the scheme (light
or dark) of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autoshard.show.html import Markup, element, join
from autoshard.units import format_bytes

MOST_TICKS = 6
"""Ticks of an axis above its zero."""
WIDE, HIGH = 1000, 260
COLUMNS = 500
"""Program points are drawn in at most so many columns; each shows the fullest point in it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A named bar: parts as (colour, amount), and what is written behind it."""

    name: str
    parts: tuple[tuple[int, float], ...]
    value: str


def bars(rows: Sequence[Bar], *, most: float | None = None) -> Markup:
    """Bars under each other on one scale, up to `most` or the longest of them."""
    longest = max((sum(amount for _, amount in row.parts) for row in rows), default=0.0)
    scale = (longest if most is None else most) or 1.0
    cells: list[Markup] = []
    for row in rows:
        parts = [
            element("span", class_=f"f{colour}", style=f"width:{100 * amount / scale:.3f}%")
            for colour, amount in row.parts
            if amount > 0
        ]
        cells.append(element("div", row.name, class_="name"))
        cells.append(element("div", *parts, class_="track"))
        cells.append(element("div", row.value, class_="value"))
    return element("div", *cells, class_="bars")


def legend(names: Sequence[tuple[int, str]]) -> Markup:
    """What the colours stand for."""
    keys = (
        element("span", element("span", class_=f"key f{colour}"), name) for colour, name in names
    )
    return element("div", *keys, class_="legend")


def stacked(
    curves: NDArray[np.float64],
    *,
    limit: float,
    labels: Sequence[tuple[float, str]],
    amount: Callable[[float], str] = format_bytes,
    about: str = "bytes in use by class over the program points of a step",
) -> Markup:
    """Bytes by class over program points, one area on the other, with the limit and the peak.

    Args:
      curves: `[classes, program points]`, bytes.
      limit: a dashed line, in bytes; left out where it is far above the curves.
      labels: what is written below, at parts of the width.
      amount: how bytes are written, or what else the curves count.
      about: what the drawing shows, for those who do not see it.
    """
    chosen = fullest(curves, COLUMNS)
    shown = curves[:, chosen]
    tops = np.vstack([np.zeros(shown.shape[1]), shown.cumsum(axis=0)])
    peak = float(tops[-1].max())
    near = limit <= 4 * peak
    step, count = round_ticks(max(peak, limit) if near else peak, amount is format_bytes)
    most = step * count
    edges = np.linspace(0, WIDE, shown.shape[1] + 1)
    shapes = []
    for number in range(len(curves)):
        if shown[number].any():
            upper, lower = (_steps(edges, HIGH * (1 - tops[number + k] / most)) for k in (1, 0))
            points = f"M{upper}L{' '.join(reversed(lower.split(' ')))}Z"
            shapes.append(element("path", d=points, class_=f"f{number % 8}"))
    if near:
        y = HIGH * (1 - limit / most)
        shapes.append(element("line", x1=0, x2=WIDE, y1=y, y2=y, class_="limit"))
    at = (int(tops[-1].argmax()) + 0.5) * WIDE / shown.shape[1]
    top = HIGH * (1 - peak / most)
    shapes.append(element("line", x1=at, x2=at, y1=top, y2=HIGH, class_="peak"))
    drawing = element(
        "svg",
        *shapes,
        viewBox=f"0 0 {WIDE} {HIGH}",
        preserveAspectRatio="none",
        role="img",
        aria_label=about,
    )
    ticks = [element("span", amount(step * k)) for k in range(count, -1, -1)]
    below = [
        element("span", text, style=f"left:{100 * part:.2f}%; --part:{-100 * part:.2f}%")
        for part, text in labels
        if text
    ]
    return element(
        "div",
        element("div", *ticks, class_="up"),
        element("div", drawing),
        element("div", *below, class_="along"),
        class_="chart",
    )


def round_ticks(top: float, in_bytes: bool) -> tuple[float, int]:
    """The distance of ticks, a round number of one unit, and how many reach the top: at most 6.

    Ticks are whole. Bytes are round in the largest unit of 1,024 to a power that the top reaches.
    """
    if top <= 0:
        return 1.0, 1
    unit = 1024.0 ** math.floor(math.log(top, 1024)) if in_bytes and top >= 1 else 1.0
    least = 10.0 ** math.floor(math.log10(top / unit)) / 10
    steps = (part * least * ten * unit for ten in (1, 10) for part in (1, 2, 5))
    step = max(next(one for one in steps if math.ceil(top / one) <= MOST_TICKS), 1.0)
    return step, math.ceil(top / step)


def fullest(curves: NDArray[np.float64], columns: int) -> NDArray[np.int64]:
    """The program points that are shown: of every column the one at which most is in use."""
    total = curves.sum(axis=0)
    bounds = np.linspace(0, total.size, min(columns, total.size) + 1).astype(int)
    return np.array([low + int(total[low:high].argmax()) for low, high in pairwise(bounds)])


def span(
    low: float, high: float, marks: Sequence[tuple[float, str, str]], *, most: float
) -> Markup:
    """A range on a line from 0 to `most`, with marks as (where, colour class, name)."""
    shapes = [
        element("rect", x=0, y=22, width=WIDE, height=2, class_="f6"),
        element(
            "rect",
            x=WIDE * low / most,
            y=14,
            width=max(WIDE * (high - low) / most, 2.0),
            height=18,
            class_="f7",
        ),
    ]
    for where, colour, name in marks:
        shapes.append(
            element(
                "rect",
                element("title", name),
                x=WIDE * where / most - 2,
                y=6,
                width=4,
                height=34,
                class_=colour,
            )
        )
    drawing = element(
        "svg",
        *shapes,
        class_="range",
        viewBox=f"0 0 {WIDE} 46",
        preserveAspectRatio="none",
        role="img",
        aria_label=", ".join(name for _, _, name in marks),
    )
    return join(drawing)


def _steps(edges: NDArray[np.float64], heights: NDArray[np.float64]) -> str:
    points = []
    for k, height in enumerate(heights.tolist()):
        points += [f"{edges[k]:.1f},{height:.1f}", f"{edges[k + 1]:.1f},{height:.1f}"]
    return " ".join(points)
