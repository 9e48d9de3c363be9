"""What `autoshard.search.explain` says of a value, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.program.layout import Layout
from autoshard.search.provenance import Origin
from autoshard.units import format_bytes, format_seconds

SHOWN = 4
EXACT = 1e-6
"""A price that is proven to within this part of the step is told without what is proven of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """The best plan in which the value has another layout.

    Attributes:
      layout: of the value.
      step_seconds, peak_bytes: of that plan, by the independent evaluator; None where it has none.
      bound: no plan with this layout takes fewer seconds.
      changes: inputs and results that are laid out otherwise in it, `path: before -> after`.
      others: how many values inside of the step are laid out otherwise.
      note: why there is no plan, or which requirements it breaks; else empty.
    """

    layout: Layout
    step_seconds: float | None
    peak_bytes: float | None
    bound: float
    changes: tuple[str, ...]
    others: int
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """What `Explainer.explain` says of one value.

    Attributes:
      value: its number; `shown` is what a user calls it, `layouts` its type in the layout it is
        stored in and, where there is one, in that of its copy.
      origins: where each axis of the stored layout comes from.
      alternatives: every other layout, the cheapest first.
      requirements: those that are about the value, with the seconds that dropping each saves.
      memory: what binds where the value lives, in words; empty where memory does not bind.
      step_seconds, peak_bytes: of the plan.
      gap: how far from the best plan it may be, relatively; the alternatives are as exact.
    """

    value: int
    shown: str
    layouts: tuple[str, ...]
    origins: tuple[Origin, ...]
    alternatives: tuple[Alternative, ...]
    requirements: tuple[tuple[str, float], ...]
    memory: str
    step_seconds: float
    peak_bytes: float
    types: tuple[str, ...]
    gap: float = 0.0

    def __str__(self) -> str:
        lines = [f"{self.shown} is {self.layouts[0]}"]
        lines += [f"  and is read as {copy}" for copy in self.layouts[1:]]
        lines += [f"  {origin}" for origin in self.origins]
        for text, saved in self.requirements:
            gain = f"costs {format_seconds(saved)} a step" if saved > 0 else "costs nothing"
            lines.append(f"  required: {text}: {gain}")
        if self.memory:
            lines.append(f"  {self.memory}")
        if self.alternatives:
            exact = "" if self.gap <= EXACT else f", each to {self.gap:.2%} as is the plan itself"
            lines.append(f"  other layouts, all else decided anew{exact}:")
        for one, shown in zip(self.alternatives, self.types, strict=True):
            lines.append(f"    {shown:<40} {priced(one, self.step_seconds, self.peak_bytes)}")
            lines += [f"      {change}" for change in one.changes[:SHOWN]]
            more = len(one.changes) - SHOWN
            if more > 0:
                lines.append(f"      and {more} more inputs and results")
        return "\n".join(lines)


def priced(one: Alternative, step_seconds: float, peak_bytes: float) -> str:
    """The price of an alternative beside a plan of these seconds and bytes, in words."""
    if one.step_seconds is None or one.peak_bytes is None:
        return one.note
    seconds, size = one.step_seconds - step_seconds, one.peak_bytes - peak_bytes
    note = f" ({one.note})" if one.note else ""
    proven = one.bound - step_seconds
    if one.step_seconds - one.bound > EXACT * one.step_seconds:
        least = f"at least {'+' if proven >= 0 else '-'}{format_seconds(abs(proven))}"
        note = f" ({'; '.join(part for part in (one.note, least) if part)})"
    return (
        f"{'+' if seconds >= 0 else '-'}{format_seconds(abs(seconds))}, "
        f"{'+' if size >= 0 else '-'}{format_bytes(abs(size))} at the peak; "
        f"{one.others} values inside change{note}"
    )
