"""A plan as its file has it: every field of its type, and what they must agree on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from jax.sharding import PartitionSpec
from msgspec import Meta

from autoshard.cost.corrections import NONE, Corrections, Part, Unit
from autoshard.files import Count, NotNegative
from autoshard.plan.decisions import Decisions, Reshard, WrittenDecisions
from autoshard.plan.records import Baseline, Estimate, KeptValue, Move, Proof, Transfer, Work
from autoshard.program.dim_order import ProductOrder
from autoshard.units import counted

MOST_DEVICES = 2**24

AxisSize = Annotated[int, Meta(ge=1, le=MOST_DEVICES)]
Place = Annotated[int, Meta(ge=0, le=63)]
"""Of a dimension."""
Entry = str | tuple[str, ...] | None
Specs = dict[str, tuple[Entry, ...]]
TypeText = Annotated[str, Meta(pattern=r"^[^\[\]]+\[(\d{1,18}(, ?\d{1,18})*)?\]$")]
"""Such as `f32[4096,128]`."""


class CompiledSays(TypedDict):
    """What a compiler said of the plan."""

    compiler: str
    step_seconds: NotNegative
    peak_bytes: NotNegative
    basis: str


class _Verdict(TypedDict):
    text: str
    source: str
    kept: bool
    how: list[str]


class RequirementVerdict(_Verdict, total=False):
    """Whether a requirement is kept, and how it was read."""

    rules: dict[str, list[str]]
    requirement: dict[str, Any]


class TraceOptions(TypedDict, total=False):
    """How the program was traced and searched."""

    donate_argnums: Count | list[Count]
    trip_counts: Count | list[Count] | dict[str, Count]
    user_rules: dict[str, str | dict[str, Any] | list[str | dict[str, Any]]]
    join_sums: bool
    saved: list[str]
    offloaded: list[str]
    prefetch: bool
    microbatches: Count
    early_casts: bool
    late_sums: list[Count]
    early_pads: bool
    parts: dict[str, list[Count]]
    host: list[str]
    platforms: list[str]
    constraints: bool


@dataclass(frozen=True, slots=True)
class WrittenOrder:
    """How the product of one op is computed."""

    op: Count
    result: tuple[Place, ...]
    contracted: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenCorrections:
    """The corrections of prices."""

    factors: tuple[tuple[str, Unit, NotNegative], ...]
    otherwise: NotNegative
    hidden: NotNegative | None
    waited: NotNegative

    def record(self) -> Corrections:
        """As prices take them."""
        factors: dict[Part, float] = {(scope, unit): factor for scope, unit, factor in self.factors}
        return Corrections(factors, self.otherwise, self.hidden, self.waited)


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """See the module, and `autoshard.plan.plan.Plan` for the fields."""

    schema_version: Literal[3]
    program: str
    fingerprint: str
    options: TraceOptions
    machine: str
    memory_limit: NotNegative | None
    mesh: dict[str, AxisSize]
    estimate: Estimate
    proof: Proof
    specs: dict[str, Specs]
    types: dict[str, dict[str, TypeText]]
    moves: tuple[Move, ...]
    baselines: tuple[Baseline, ...]
    decisions: WrittenDecisions
    reshards: tuple[Reshard, ...]
    corrections: WrittenCorrections = field(
        default_factory=lambda: WrittenCorrections(**NONE.to_json())
    )
    compiled: CompiledSays | None = None
    requirements: tuple[RequirementVerdict, ...] = ()
    product_orders: tuple[WrittenOrder, ...] = ()
    row_major: tuple[Count, ...] = ()
    belief: str = ""
    flags: str = "default"
    notes: tuple[str, ...] = ()
    marks: str = ""
    kept: tuple[KeptValue, ...] = ()
    argument_names: tuple[str, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    work: Work | None = None

    def faults(self) -> Iterator[str]:
        """What contradicts itself among fields that are each of the right form."""
        axes = len(self.mesh)
        if math.prod(self.mesh.values()) > MOST_DEVICES:
            yield f"mesh: it has more than {MOST_DEVICES} devices"
        for side in ("inputs", "outputs"):
            for table, name in ((self.specs, "specs"), (self.types, "types")):
                if side not in table:
                    yield f"{name} lacks {side}"
        for side, specs in self.specs.items():
            for path, spec in specs.items():
                yield from self._spec_faults(side, path, spec)
        decisions = self.decisions
        if not len(decisions.stored) == len(decisions.copy) == len(decisions.mode):
            yield "decisions: stored, copy and mode are of different lengths"
        for name in ("stored", "copy", "assignment"):
            numbers = getattr(decisions, name)
            if any(number >= len(decisions.tuples) for number in numbers):
                yield f"decisions: {name} names a tuple that is not there"
            elif any(n >= 0 and len(decisions.tuples[n]) != axes for n in numbers):
                yield f"decisions: {name} holds entries for another number of axes than {axes}"

    def _spec_faults(self, side: str, path: str, spec: tuple[Entry, ...]) -> Iterator[str]:
        unknown = sorted({axis for entry in spec for axis in _axes(entry)} - set(self.mesh))
        if unknown:
            shape = ", ".join(f"{name}={size}" for name, size in self.mesh.items())
            yield f"{side} {path}: no axis {', '.join(unknown)} in the mesh {shape}"
        kind = self.types.get(side, {}).get(path)
        if kind is None:
            yield f"{side} {path}: it has no type"
        elif len(spec) > (rank := kind.count(",") + (not kind.endswith("[]"))):
            yield (
                f"{side} {path}: a layout of {counted(len(spec), 'dimension')} for the {rank} "
                f"of {kind}"
            )

    def partition_specs(self) -> dict[str, dict[str, PartitionSpec]]:
        """The layouts of inputs and outputs."""
        return {
            side: {path: PartitionSpec(*spec) for path, spec in specs.items()}
            for side, specs in self.specs.items()
        }

    def orders(self) -> dict[int, ProductOrder]:
        """How products are computed, by op."""
        return {one.op: ProductOrder(one.result, one.contracted) for one in self.product_orders}

    def decided(self) -> Decisions:
        """What was decided, value by value and op by op."""
        return self.decisions.record()


def _axes(entry: Entry) -> tuple[str, ...]:
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)
