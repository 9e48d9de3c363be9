"""The Pareto plot of a sweep: what a token costs across, how fast they come up, as SVG.

Matplotlib draws it twice, for a wide page and for a phone, in the colours of the page: what it
writes as a colour becomes the page's variable, so that it follows light and dark.
"""

from __future__ import annotations

import functools
import io
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from autoshard.extras import why_missing
from autoshard.show.html import Markup, element, join
from autoshard.study.whatif.answers import HOUR, efficient, work_of
from autoshard.study.whatif.row import Row
from autoshard.study.whatif.table import WhatIf
from autoshard.units import format_number, visible

COLOURS = ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0", "#9498a0", "#97bbf5")
"""The page's `--c0` to `--c7` in light."""
INK, SOFT, LINE, GROUND = "#1b1f24", "#5b6470", "#d9dce1", "#ffffff"
MARKERS = "osD^vPX*"
NOTHING: Mapping[str, str] = {}
MOST_NAMES = 12
"""Machines are named on the plot while so few lie on the front."""


def pareto_plot(sweep: WhatIf) -> Markup | None:
    """The rows that fit, with the efficient ones joined; None where fewer than two fit."""
    points = _points(sweep)
    if len(points) < 2:
        return None
    across, up = _axes(sweep)
    said = {
        point_name(place): f"{row}: {format_number(rate)} {up}, {format_number(cost)} {across}"
        for place, (row, cost, rate, _) in enumerate(points)
    }
    drawings = drawn(functools.partial(_draw, sweep, points), said)
    return element("div", *drawings, class_="plot", role="img", aria_label=_caption(sweep))


def _caption(sweep: WhatIf) -> str:
    across, up = _axes(sweep)
    return f"{up} against {across}, by chip; filled: no other row is both faster and cheaper"


def _priced(sweep: WhatIf) -> bool:
    return all(sweep.cost_per_hour(row) is not None for row in sweep.rows if row.fits)


def _axes(sweep: WhatIf) -> tuple[str, str]:
    tokens = _counted(sweep)
    what = "a million tokens" if tokens else "a step"
    unit = sweep.prices.currency if _priced(sweep) else "chip-hours" if tokens else "chip-seconds"
    return f"{unit} for {what}", "tokens/s" if tokens else "steps/s"


def _counted(sweep: WhatIf) -> bool:
    return all(row.tokens for row in sweep.rows if row.fits)


def _points(sweep: WhatIf) -> list[tuple[Row, float, float, bool]]:
    """Row, cost, rate, and whether the row is efficient."""
    front, priced, counted = efficient(sweep), _priced(sweep), _counted(sweep)
    found = []
    for number, row in enumerate(sweep.rows):
        if row.step_seconds is None:
            continue
        units = (row.tokens or 1) if counted else 1
        hours = row.step_seconds / HOUR / units * (1e6 if counted else 1)
        hourly = sweep.cost_per_hour(row) if priced else None
        cost = hours * (row.chips if hourly is None else hourly)
        if not counted and hourly is None:
            cost *= HOUR
        found.append((row, cost, units / row.step_seconds, number in front))
    return found


def _draw(
    sweep: WhatIf, points: list[tuple[Row, float, float, bool]], figure: Any, wide: bool
) -> None:
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.grid(visible=True)
    _scatter(axes, points, priced=_priced(sweep), named=wide)
    across, up = _axes(sweep)
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    chips = len({row.chip for row, *_ in points})
    figure.legend(loc="outside upper left", ncols=min(chips, 6 if wide else 3), fontsize=10)


def drawn(plot: Callable[[Any, bool], None], said: Mapping[str, str] = NOTHING) -> list[Markup]:
    """What `plot(figure, wide)` draws, for a wide page and for a phone; the page shows one.

    `said` has, by the `gid` of what is drawn, the words that a pointer over it shows. Without
    Matplotlib the page says how to install it.
    """
    if missing := why_missing("matplotlib", "plots", "This picture"):
        return [element("p", f"{missing}. The tables say the same in numbers.", class_="soft")]
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    found = []
    for name, size in (("wide-plot", (10.4, 4.6)), ("narrow-plot", (4.6, 5.0))):
        settings: dict[Any, Any] = {
            "svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10, "text.color": INK,
            "axes.labelcolor": SOFT, "axes.edgecolor": LINE, "xtick.color": SOFT,
            "ytick.color": SOFT, "legend.frameon": False, "grid.color": LINE,
            "grid.linewidth": 0.6, "text.parse_math": False,
        }  # fmt: skip
        with matplotlib.rc_context(settings), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # the reader's fonts are drawn, not ours
            figure = Figure(figsize=size, layout="constrained")
            FigureCanvasSVG(figure)
            plot(figure, name == "wide-plot")
            written = io.StringIO()
            figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        found.append(element("div", _inline(written.getvalue(), said), class_=name))
    return found


def _scatter(
    axes: Any, points: list[tuple[Row, float, float, bool]], *, priced: bool, named: bool
) -> None:
    chips = list(dict.fromkeys(row.chip for row, *_ in points))
    lines: dict[Any, list[tuple[float, float]]] = {}
    for number, chip in enumerate(chips):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        for place, (row, x, y, front) in enumerate(points):
            if row.chip == chip:
                look = {"s": 52, "marker": marker, "edgecolors": colour, "linewidths": 1.2}
                face, name = colour if front else "none", point_name(place)
                axes.scatter([x], [y], facecolors=face, zorder=3, gid=name, **look)
        axes.scatter([], [], marker=marker, color=colour, label=chip)
        for row, x, y, best in points:
            if best and row.chip == chip:
                key = (work_of(row), "" if priced else chip)
                lines.setdefault((key, SOFT if priced else colour), []).append((x, y))
    for (_, colour), line in lines.items():
        axes.plot(*_columns(sorted(line)), color=colour, linewidth=1.2, zorder=2)
    best = [(row, x, y) for row, x, y, front in points if front]
    if named and len(best) <= MOST_NAMES:
        for row, x, y in best:
            name = row.machine.rpartition("/")[2].removesuffix(".toml")
            place = {"xytext": (-7, 3), "textcoords": "offset points", "fontsize": 9}
            axes.annotate(name, (x, y), color=SOFT, ha="right", **place)


def point_name(place: int) -> str:
    """The name of a point in a drawing, by which it is given words."""
    return f"point-{place}"


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def plain_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis as plain numbers, not too many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    low, high = axis.get_view_interval()
    subs = (1.0,) if high / low > 300 else (1.0, 3.0) if high / low > 30 else (1.0, 2.0, 5.0)
    if high / low < 3:
        subs = tuple(map(float, range(1, 10)))
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _inline(written: str, said: Mapping[str, str]) -> Markup:
    """The drawing as part of a page: in its colours, at any width, and without a style of its own.

    The words of the sweep are escaped already, by Matplotlib.
    """
    text = visible(written[written.index("<svg") :])
    for tag in ("metadata", "style"):
        text = re.sub(rf"<{tag}\b.*?</{tag}>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", text)
    for name, words in said.items():
        text = text.replace(f'<g id="{name}">', f"<g>{element('title', words)}")
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    names: Mapping[str, str] = {
        **{colour: f"c{number}" for number, colour in enumerate(COLOURS)},
        INK: "ink", SOFT: "soft", LINE: "line", GROUND: "ground",
    }  # fmt: skip
    for colour, name in names.items():
        text = text.replace(colour, f"var(--{name})")
    return Markup(text.strip())


def pareto_section(sweep: WhatIf) -> Markup | None:
    """The plot with what it means."""
    plot = pareto_plot(sweep)
    if plot is None:
        return None
    joined = "across chips" if _priced(sweep) else "among chips of one kind, for want of prices"
    return join(
        plot,
        element(
            "p",
            f"Further up is faster, further left is cheaper. Filled and joined: rows that no other "
            f"one beats in both, {joined}, with equal work.",
            class_="soft",
        ),
    )
