"""What is answered about the stages of a plan: the records, and their texts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from autoshard.search.dearest import Dear
from autoshard.search.explanation import EXACT, Alternative, Explanation
from autoshard.search.keep.otherwise import KeptOtherwise
from autoshard.search.meshes.explain.staged import Share, StepPrice
from autoshard.terminal import paragraph
from autoshard.units import counted, format_bytes, format_percent, format_seconds

NO_TIME = 1e-9
"""Of a step; times below this share of it are none."""
LEAST = 5e-4
"""Shares below this are none."""
FEW, MOST = 0.5, 0.9
"""Of what a stage works more, what is added where others set the pace at most, and at least where
it does."""


@dataclass(frozen=True, slots=True)
class Place:
    """A stage in the step.

    Attributes:
      stage, mesh: the numbers of the stage and of its mesh.
      machine, shape: of the mesh.
      busy_seconds: of a step, in which the stage works.
      step_seconds: of the step.
      share: what of the time that the stage works more the step takes longer.
    """

    stage: int
    mesh: int
    machine: str
    shape: str
    busy_seconds: float
    step_seconds: float
    share: Share

    @property
    def title(self) -> str:
        """Return which stage it is, and where."""
        return f"stage {self.stage} on mesh {self.mesh} ({self.machine}, {self.shape})"

    def __str__(self) -> str:
        worked = format_percent(self.busy_seconds / self.step_seconds)
        added, room = self.share.added, self.share.room_seconds
        pace = f": {'it sets' if added >= MOST else 'others set'} the pace"
        share = "nothing" if added < LEAST else format_percent(min(added, 1.0))
        up_to = "" if math.isinf(room) else f" (up to {format_seconds(room)} for each microbatch)"
        return (
            f"{self.title} works {worked} of the step; of what it works more{up_to} {share} is "
            f"added to the step{pace if not FEW < added < MOST else ''}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; a share without an end has none."""
        share, room = asdict(self.share), self.share.room_seconds
        return {
            **asdict(self),
            "share": {**share, "room_seconds": room if math.isfinite(room) else None},
        }


@dataclass(frozen=True, slots=True, eq=False)
class StageExplanation:
    """The explanation of a value in one stage.

    Attributes:
      place: the stage.
      explanation: of the value in the stage's own plan; its seconds are those in which the stage
        works in a step.
      now: the price of the step.
      steps: for each of the explanation's alternatives the price of the step with it; None where
        there is no plan.
      alike: an equal stage in which the same is said of the value.
    """

    place: Place
    explanation: Explanation
    now: StepPrice
    steps: tuple[StepPrice | None, ...]
    alike: int | None = None

    def __str__(self) -> str:
        own = self.explanation
        pairs = zip(own.alternatives, self.steps, strict=True)
        prices = [self._priced(one, step) for one, step in pairs]
        how = "other layouts, all else of the stage decided anew, and the step priced with it"
        if self.alike is not None:
            same = f"for the reasons of stage {self.alike}"
            own = replace(own, origins=(), kernels=(), requirements=(), memory="", host=(same,))
        return f"{paragraph(str(self.place), hanging=2)}\n{own.text(how, prices)}"

    def _priced(self, one: Alternative, step: StepPrice | None) -> str:
        if step is None or one.step_seconds is None:
            return one.note
        own = one.step_seconds - self.explanation.step_seconds
        changed = f"{counted(one.others, 'value')} inside changed"
        return "; ".join([*of_step(step, self.now, self.place, own), changed, *_notes(one)])

    def to_json(self) -> dict[str, Any]:
        """Plain data: the explanation in the stage, with the prices of the step."""
        own = self.explanation.to_json()
        others = [
            {**one, "pipeline": None if step is None else asdict(step)}
            for one, step in zip(own.pop("other_layouts"), self.steps, strict=True)
        ]
        return {
            **self.place.to_json(),
            "stage_seconds": own.pop("step_seconds"),
            "stage_peak_bytes": own.pop("peak_bytes"),
            **own,
            "as_in_stage": self.alike,
            "step_seconds": self.now.seconds,
            "peak_bytes": list(self.now.peak_bytes),
            "other_layouts": others,
        }


@dataclass(frozen=True, slots=True)
class StageDearest:
    """The dearest values of a stage, as they lie.

    Attributes:
      alike: an equal stage before it, whose values lie alike.
    """

    place: Place
    dearest: tuple[Dear, ...]
    alike: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        values = [asdict(one) for one in self.dearest]
        return {**self.place.to_json(), "as_in_stage": self.alike, "dearest": values}


@dataclass(frozen=True, slots=True)
class StageKept:
    """What it costs of a step to keep a value of one stage otherwise.

    Attributes:
      place: the stage.
      kept: its seconds are those of the step, and its bytes those of a device of the stage's mesh.
      stage_seconds: so much more the stage works in a step; None where there is no plan.
      host_bytes: so much more a microbatch keeps on the host.
    """

    place: Place
    kept: KeptOtherwise
    stage_seconds: float | None = None
    host_bytes: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        own = {"stage_seconds": self.stage_seconds, "host_bytes": self.host_bytes}
        return {"stage": self.place.stage, "mesh": self.place.mesh, **self.kept.to_json(), **own}


def of_step(step: StepPrice, now: StepPrice, place: Place, own_seconds: float) -> Iterator[str]:
    """Yield what a step takes more, where it cannot run why, and what the stage works more."""
    if step.seconds is None or now.seconds is None:
        yield step.why
        return
    more = step.seconds - now.seconds
    how = "less" if own_seconds < 0 else "more"
    worked = f"the stage works {format_seconds(abs(own_seconds))} {how}"
    none = abs(more) <= NO_TIME * now.seconds
    yield f"{'no change' if none else signed_seconds(more)} of the step ({worked})"
    bytes_more = step.peak_bytes[place.mesh] - now.peak_bytes[place.mesh]
    yield f"{signed_bytes(bytes_more)} at the peak of mesh {place.mesh}"
    if not step.fits:
        yield f"does not fit: {step.why}"


def _notes(one: Alternative) -> Iterator[str]:
    if one.note:
        yield one.note
    assert one.step_seconds is not None
    if one.step_seconds - one.bound > EXACT * one.step_seconds:
        left = format_seconds(one.step_seconds - one.bound)
        yield f"a plan of the stage that works {left} less is not ruled out"


def signed_seconds(seconds: float) -> str:
    """Return a difference in seconds with its sign."""
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def signed_bytes(size: float) -> str:
    """Return a difference in bytes with its sign."""
    return f"{'-' if size < 0 else '+'}{format_bytes(abs(size))}"
