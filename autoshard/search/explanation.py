"""The explanation of a value by `autoshard.search.explain`, and its text form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autoshard.plan.decisions import Decisions
from autoshard.program.layout import Layout
from autoshard.search.provenance import Origin
from autoshard.terminal import paragraph
from autoshard.units import counted, format_bytes, format_percent, format_seconds

SHOWN = 4
WIDEST = 26
"""Columns of an alternative's type, before its price."""
EXACT = 1e-6
"""If a price is proven to within this fraction of the step, the text omits its bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Alternative:
    """The best plan in which the value has another layout.

    Attributes:
      layout: the other layout of the value.
      step_seconds, peak_bytes: of that plan, from the independent evaluator; None without a plan.
      bound: a lower bound in seconds for all plans with this layout.
      changes: inputs and results with another layout in it, as `path: before -> after`.
      others: how many values inside the step have another layout.
      note: why there is no plan, or which requirements it breaks; otherwise empty.
      decisions: of that plan.
    """

    layout: Layout
    step_seconds: float | None
    peak_bytes: float | None
    bound: float
    changes: tuple[str, ...]
    others: int
    note: str = ""
    decisions: Decisions | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain data, but for the layout, which is shown as a type."""
        parts = ("step_seconds", "peak_bytes", "others", "note")
        bound = {"bound_seconds": self.bound if math.isfinite(self.bound) else None}
        return {name: getattr(self, name) for name in parts} | bound | {"changes": [*self.changes]}


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """The explanation of one value, from `Explainer.explain`.

    Attributes:
      value: the value's number. `shown` is its name for the user. `layouts` is its type in the
        layout it is stored in and, if it has a copy, in the layout of the copy.
      origins: where each axis of the stored layout comes from.
      alternatives: every other layout, the cheapest first.
      requirements: the requirements on the value, each with the seconds that dropping it saves.
      memory: a text on where memory binds in the value's lifetime; empty if it does not bind.
      step_seconds, peak_bytes: of the plan.
      gap: the relative gap of the plan to the bound; the alternatives are as accurate.
      kernels: what kernels that make or read the value keep whole, and why.
      host: what it takes of the host's memory, and what its transfers cost.
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
    kernels: tuple[str, ...] = ()
    host: tuple[str, ...] = ()

    def __str__(self) -> str:
        prices = [priced(one, self.step_seconds, self.peak_bytes) for one in self.alternatives]
        return self.text("other layouts, all else decided anew", prices)

    def text(self, others: str, prices: Sequence[str]) -> str:
        """Return the explanation with these prices of the alternatives.

        Args:
          others: what the alternatives are.
        """
        said = [f"and is read as {copy}" for copy in self.layouts[1:]]
        said += [*map(str, self.origins), *self.kernels, *self.host]
        for text, saved in self.requirements:
            gain = f"costs {format_seconds(saved)} a step" if saved > 0 else "costs nothing"
            said.append(f"required: {text}: {gain}")
        said += [self.memory] if self.memory else []
        lines = [paragraph(f"{self.shown} is {self.layouts[0]}", hanging=2)]
        lines += [paragraph(one, indent=2, hanging=2) for one in said]
        if self.alternatives:
            exact = (
                ""
                if self.gap <= EXACT
                else f", each to {format_percent(self.gap, '.2f')} as is the plan itself"
            )
            lines.append(f"  {others}{exact}:")
        for one, shown, price in zip(self.alternatives, self.types, prices, strict=True):
            lines.append(paragraph(f"{shown:<{WIDEST}} {price}", indent=4, hanging=WIDEST + 1))
            lines += [paragraph(change, indent=6, hanging=2) for change in one.changes[:SHOWN]]
            more = len(one.changes) - SHOWN
            if more > 0:
                lines.append(f"      and {more} more of the inputs and results")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "value": self.shown,
            "layouts": list(self.layouts),
            "why": [str(one) for one in (*self.origins, *self.kernels)],
            "requirements": [
                {"text": text, "saved_seconds": saved} for text, saved in self.requirements
            ],
            "memory": self.memory,
            "host": list(self.host),
            "step_seconds": self.step_seconds,
            "peak_bytes": self.peak_bytes,
            "gap": self.gap,
            "other_layouts": [
                {"type": shown, **one.to_json()}
                for one, shown in zip(self.alternatives, self.types, strict=True)
            ],
        }


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """How another plan differs from one, from `Explainer.against`.

    Attributes:
      seconds, bytes: of a step and at the peak, of the one plan and of the other.
      changes: inputs and results with another layout, as `path: before -> after`.
      others: how many values inside the step have another layout.
      alone: for each differing value its name and layout in the other plan, and the best plan in
        which that one alone is so.
    """

    seconds: tuple[float, float]
    bytes: tuple[float, float]
    changes: tuple[str, ...]
    others: int
    alone: tuple[tuple[str, Alternative], ...]

    def __str__(self) -> str:
        (mine, there), (own, theirs) = self.seconds, self.bytes
        lines = [
            paragraph(
                f"the other plan takes {format_seconds(there)} and {format_bytes(theirs)}, this "
                f"one {format_seconds(mine)} and {format_bytes(own)}"
            ),
            paragraph(
                f"what is laid out otherwise: {len(self.changes)} of the inputs and results, and "
                f"{counted(self.others, 'value')} inside the step"
            ),
            *(paragraph(change, indent=2, hanging=2) for change in self.changes),
        ]
        if self.alone:
            lines.append("each of them alone, all else decided anew:")
        lines += [
            paragraph(f"{shown}: {priced(one, mine, own)}", indent=2, hanging=2)
            for shown, one in self.alone
        ]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "step_seconds": list(self.seconds),
            "peak_bytes": list(self.bytes),
            "changes": list(self.changes),
            "others": self.others,
            "alone": [{"value": shown, **one.to_json()} for shown, one in self.alone],
        }


def priced(one: Alternative, step_seconds: float, peak_bytes: float) -> str:
    """Return a text with an alternative's price relative to a plan's seconds and peak bytes."""
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
        f"{counted(one.others, 'value')} inside changed{note}"
    )
