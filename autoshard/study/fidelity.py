"""How well predictions agree with what a compiler says: over rows of plans, by program and group.

A row is a mapping with `program`, `machine`, `mesh`, `plan`, `step` and `compiled` (seconds),
`peak_gib` and `compiled_gib`, `wire_gb` and `final_gb`, and `unplanned`; where a search minimises
something else than `step`, also the `objective`. Rows without a compiled
side (a compiler that refused) are counted and left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from autoshard.extras import require
from autoshard.terminal import paragraph
from autoshard.units import counted, format_percent

GROUP = ["program", "machine", "mesh"]
NEAR_BEST = 0.03
"""A plan this near to the compiled time of the best one counts as the best."""


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """Agreement over many plans.

    Attributes:
      table: a row per program and one for all: `plans`; `spearman`, the rank correlation of step
        seconds; `step_error`, the median of |predicted / compiled - 1|; `peak_near`, the share of
        plans whose predicted peak is within 10 % of the compiled one; `peak_below`, the share
        predicted more than 20 % below it; `wire_near`, the share whose bytes on the wire are
        within 10 %; `unplanned`, plans with unplanned collectives.
      groups: how many groups there are.
      best_kept: in how many of them the plan that a search prefers is within 3 % of the compiler's
        best.
      refused: plans without a compiled side.
    """

    table: pd.DataFrame
    groups: int
    best_kept: int
    refused: int

    def __str__(self) -> str:
        shown = self.table.to_string(float_format=lambda number: f"{number:.3f}")
        return f"{shown}\n" + paragraph(
            f"the plan preferred is the compiler's best, or within "
            f"{format_percent(NEAR_BEST, '.0f')}, in {self.best_kept} of "
            f"{counted(self.groups, 'group')}; "
            f"{counted(self.refused, 'plan')} were not compiled"
        )


def summary(rows: Sequence[Mapping[str, Any]]) -> Summary:
    """Agreement over `rows`, see `Summary`."""
    everything: Any = pd.DataFrame(list(rows))
    if "compiled" not in everything:
        return Summary(pd.DataFrame(), 0, 0, len(everything))
    frame: Any = everything.dropna(subset=["compiled"])
    parts: dict[str, Any] = dict(iter(frame.groupby("program", sort=False)))
    parts["all"] = frame
    table = pd.DataFrame({name: _agreement(part) for name, part in parts.items()}).T
    table["plans"] = table["plans"].astype(int)
    kept = [_keeps_best(group) for _, group in frame.groupby(GROUP) if len(group) > 1]
    return Summary(table, len(kept), sum(kept), len(everything) - len(frame))


def _agreement(frame: Any) -> dict[str, float]:
    step = frame["step"] / frame["compiled"] - 1
    peak = frame["peak_gib"] / frame["compiled_gib"]
    wire = frame["wire_gb"] / frame["final_gb"]
    return {
        "plans": len(frame),
        "spearman": float(frame["step"].corr(frame["compiled"], method="spearman")),
        "step_error": float(step.abs().median()),
        "peak_near": float(((peak - 1).abs() <= 0.1).mean()),
        "peak_below": float((peak < 0.8).mean()),
        "wire_near": float(((wire - 1).abs() <= 0.1).mean()),
        "unplanned": float((frame["unplanned"] > 0).mean()),
    }


def _keeps_best(group: Any) -> bool:
    preferred = group["objective" if "objective" in group else "step"]
    chosen = group.loc[preferred.idxmin(), "compiled"]
    return bool(chosen <= group["compiled"].min() * (1 + NEAR_BEST))


def draw(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Scatter plots of step seconds, peak and wire bytes, predicted across, compiled up."""
    require("matplotlib", "plots", "A picture of fidelity")
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    frame: Any = pd.DataFrame(list(rows)).dropna(subset=["compiled"])
    panels = (
        ("step", "compiled", "seconds of a step"),
        ("peak_gib", "compiled_gib", "peak GiB on a device"),
        ("wire_gb", "final_gb", "GB sent by a device"),
    )
    colors = matplotlib.colormaps["tab20"]
    figure, places = pyplot.subplots(1, len(panels), figsize=(16, 5.5), layout="constrained")
    for place, (across, up, title) in zip(places, panels, strict=True):
        positive = frame[(frame[across] > 0) & (frame[up] > 0)]
        for number, program in enumerate(frame["program"].unique()):
            part = positive[positive["program"] == program]
            color = colors(number % colors.N)
            place.scatter(part[across], part[up], s=18, alpha=0.8, label=program, color=color)
        if len(positive):
            ends = positive[[across, up]].to_numpy()
            equal = [ends.min(), ends.max()]
            place.plot(equal, equal, color="gray", linewidth=1)
        place.set(xscale="log", yscale="log", title=title, xlabel="predicted", ylabel="compiled")
    places[0].legend(fontsize=7)
    figure.savefig(path)
    pyplot.close(figure)
