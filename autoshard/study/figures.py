"""Figures that benchmarks come to, beside peers and targets: kept as CSV, and compared."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

NOISE = {"s": 0.25}
"""Relative change of a figure of that unit which is not a regression; of others `CHANGE`."""
CHANGE = 0.005
ROUNDING = 1e-9
"""Relative; a target that is missed by less is met."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that a benchmark came to.

    Attributes:
      part, row, figure: which benchmark, which of its rows, and what was measured.
      value, unit: None where there is no answer; `note` says why.
      better: "less" or "more".
      peer, peer_value: who else was measured or published, and the figure.
      target: that the value is to reach, or None.
      note: what was wrong.
    """

    part: str
    row: str
    figure: str
    value: float | None
    unit: str
    better: str
    peer: str = ""
    peer_value: float | None = None
    target: float | None = None
    note: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two figures comparable."""
        return self.part, self.row, self.figure

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None without one."""
        if self.target is None:
            return None
        if self.value is None:
            return False
        slack = ROUNDING * abs(self.target)
        if self.better == "less":
            return self.value <= self.target + slack
        return self.value >= self.target - slack

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{self.value:.6g} {self.unit}".strip()
        peer = "" if self.peer_value is None else f", {self.peer} {self.peer_value:.6g}"
        met = {True: ", target met", False: ", TARGET MISSED", None: ""}[self.met]
        return f"{' / '.join(self.key)}: {value}{peer}{met}{f' ({self.note})' if self.note else ''}"


def regressions(old: Sequence[Figure], new: Sequence[Figure]) -> list[str]:
    """What got worse, or is gone, a line each."""
    before = {one.key: one for one in old}
    found = []
    for one in new:
        was = before.get(one.key)
        if was is None or was.value is None:
            continue
        name = " / ".join(one.key)
        if one.value is None:
            found.append(f"{name}: {was.value:.6g} before, nothing now: {one.note}")
            continue
        change = one.value - was.value if one.better == "less" else was.value - one.value
        allowed = NOISE.get(one.unit, CHANGE) * max(abs(was.value), 1e-3)
        if change > allowed:
            found.append(f"{name}: {was.value:.6g} -> {one.value:.6g} ({one.better} is better)")
    parts = {one.part for one in new}
    gone = [one for one in old if one.part in parts and one.key not in {n.key for n in new}]
    return found + [f"{' / '.join(one.key)}: {one.value} before, not measured now" for one in gone]


def read_figures(path: str) -> list[Figure]:
    """The figures that `--csv` wrote.

    Raises:
      ValueError: the file holds something else.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [one.name for one in fields(Figure)]
    if not rows or any(set(row) != set(names) for row in rows):
        raise ValueError(f"{path!r} is not what `autoshard bench all --csv` writes; run it again")
    return [_figure(row) for row in rows]


def _figure(row: dict[str, str]) -> Figure:
    value, peer_value, target = (
        float(row[name]) if row[name] else None for name in ("value", "peer_value", "target")
    )
    texts = {
        name: row[name] for name in ("part", "row", "figure", "unit", "better", "peer", "note")
    }
    return Figure(**texts, value=value, peer_value=peer_value, target=target)


def figures_csv(figures: Sequence[Figure]) -> str:
    """The figures as CSV, which `read_figures` reads."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [one.name for one in fields(Figure)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(one) for one in figures)
    return text.getvalue()
