"""One row of a sweep: the question, the plan that was found for it, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from autoshard.files import Count, NotNegative

SCHEMA_VERSION = 1

Size = int | float | bool | str | None
Chips = Annotated[int, Meta(ge=1)]
Step = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class Row:
    """See the module. What is not known, or not so, is None.

    Attributes:
      sizes: of the program.
      chip, chips, machine: family or file, number of chips, full name.
      limit_bytes: memory per device that the plan may use.
      status: "optimal", "feasible" (a plan, with a gap), "infeasible", or "no plan" (the time ran
        out).
      why: of a row without a plan, what keeps it from having one.
      mesh, layouts: the plan's mesh, and how its state lies on it, in short.
      step_seconds: the plan's step; it lies between `lower_seconds` (all collectives hidden) and
        `upper_seconds` (none hidden).
      bound_seconds, gap: what no plan undercuts; (step - bound) / step.
      compute_seconds, collective_seconds: the two parts of `upper_seconds`.
      peak_bytes: per device.
      tokens: in one step.
      tokens_per_second, tokens_per_second_per_chip: at `step_seconds`.
      utilisation: model FLOP utilisation; see `autoshard.plan.work`.
      binds: the resource of which a tenth more saves most; see `autoshard.study.whatif.gains`.
      saved_seconds: seconds a step that a tenth more of each resource saves.
      seconds_per_gib: seconds a step that one more GiB per device saves at most, to first order.
      copies: where copies that the compiler makes take more than a tenth of the step, what they are
        and what to do about them.
      solver_seconds: wall-clock seconds that the row took.
      key: of the question; equal questions have equal keys.
    """

    sizes: Mapping[str, Size]
    chip: str
    chips: Chips
    machine: str
    limit_bytes: NotNegative
    status: Literal["optimal", "feasible", "infeasible", "no plan"]
    why: str | None = None
    mesh: str | None = None
    layouts: str | None = None
    step_seconds: Step | None = None
    lower_seconds: NotNegative | None = None
    upper_seconds: NotNegative | None = None
    bound_seconds: float | None = None
    gap: float | None = None
    compute_seconds: NotNegative | None = None
    collective_seconds: NotNegative | None = None
    peak_bytes: Count | None = None
    tokens: Count | None = None
    tokens_per_second: NotNegative | None = None
    tokens_per_second_per_chip: NotNegative | None = None
    utilisation: NotNegative | None = None
    binds: str | None = None
    saved_seconds: Mapping[str, float] = field(default_factory=dict)
    seconds_per_gib: float | None = None
    copies: str | None = None
    solver_seconds: NotNegative = 0.0
    key: str = ""

    @property
    def fits(self) -> bool:
        """Whether there is a plan."""
        return self.step_seconds is not None

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"{self.machine} {sizes}".strip()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
