"""A plan: what was decided, what it costs, how it was proven, and how to read it back.

A plan is immutable and stands alone: its JSON file holds the mesh, the layouts of all inputs and
outputs, every planned collective, the price, the proof and the decisions from which
`autoshard.lower` makes a program. It names its program by a fingerprint of the traced graph, and
refuses to be used with another one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from jax.sharding import PartitionSpec

from autoshard.cost.corrections import NONE, Corrections
from autoshard.plan.decisions import Decisions, Reshard
from autoshard.program.dim_order import ProductOrder
from autoshard.program.subaxes import coarse
from autoshard.solve.limit_hit import LimitHit, limit_hit

SCHEMA_VERSION = 3


class PlanError(ValueError):
    """A plan file that cannot be used: damaged, of another version, or for another program."""


@dataclass(frozen=True, slots=True)
class Move:
    """One planned collective.

    Attributes:
      kind: all_gather, all_reduce, reduce_scatter, all_to_all, collective_permute or all_slice.
      axes: names of the mesh axes that it runs over.
      bytes: per device and execution; of the result for all_gather and all_slice, else of the
        operand.
      count: how often it runs in a step.
      seconds: all executions together, none hidden.
      exposed_seconds: what of that adds to the step.
      scope, line: where in the user's program.
      value: the type before and after, as `bf16[8@x, 4] -> bf16[8, 4]`.
      sent_bytes: where the compiler converts before it sends, what `bytes` comes to then.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    count: int
    seconds: float
    exposed_seconds: float
    scope: str
    line: str
    value: str
    sent_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The price of one step, by the independent evaluator.

    Attributes:
      step_seconds: compute plus exposed collectives; this is what the solver minimises.
      lower_seconds: every collective hidden behind compute.
      upper_seconds: no collective hidden.
      compute_seconds, collective_seconds: the two parts of the upper bound.
      peak_bytes: per device, over all program points.
      peak_at: the op at which the peak stands.
      scheduled_bytes: the peak in the order in which the compiler runs this very plan, see
        `autoshard.xla.forecast.forecast`; None where that is the order of `peak_bytes`, which the
        solver and its limit count in.
      scheduled_seconds: of a step in that order, which says what each collective is hidden behind;
        nothing where the chip's memory does not suffice; None where the compiler hides none.
    """

    step_seconds: float
    lower_seconds: float
    upper_seconds: float
    compute_seconds: float
    collective_seconds: float
    peak_bytes: int
    peak_at: str = ""
    scheduled_bytes: int | None = None
    scheduled_seconds: float | None = None

    @property
    def expected_seconds(self) -> float:
        """What a step of the compiled plan is expected to take."""
        return self.step_seconds if self.scheduled_seconds is None else self.scheduled_seconds

    @property
    def expected_bytes(self) -> int:
        """What the compiled plan is expected to take, per device."""
        return self.peak_bytes if self.scheduled_bytes is None else self.scheduled_bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """How good the plan is known to be, within the space that the README states.

    Attributes:
      status: "optimal", "feasible" (stopped with a gap).
      objective, bound: seconds per step of the plan, and that no plan can undercut.
      gap: (objective - bound) / objective.
      seconds: spent in the solver.
      limit_hit: what stopped it, or None.
      meshes: for every mesh shape that was considered, its bound and, where solved, objective.
    """

    status: str
    objective: float
    bound: float
    gap: float
    seconds: float
    limit_hit: LimitHit | None = None
    meshes: tuple[tuple[str, float, float | None], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit_hit", limit_hit(self.limit_hit))


@dataclass(frozen=True, slots=True)
class Baseline:
    """A well-known scheme on the same mesh, completed by the same solver at the same prices."""

    name: str
    step_seconds: float | None
    peak_bytes: int | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class MeshShape:
    """Named mesh axes, major to minor."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        axes = coarse(self.names, self.sizes)
        return ", ".join(f"{name}={'*'.join(map(str, parts))}" for name, parts in axes.items())


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module docstring.

    Attributes:
      program: name of the program; on the command line, how it is found again.
      fingerprint: of the traced graph.
      options: `donate_argnums`, `trip_counts` and `user_rules` with which it was traced.
      machine: name of the machine, or the path of its file.
      memory_limit: bytes per device that the plan may use.
      mesh: named axes and their sizes.
      estimate, proof, moves, baselines: see there.
      specs: "inputs" and "outputs", each {tree path: PartitionSpec}.
      decisions, reshards: what lowering needs.
      types: the unsharded types of inputs and outputs, as `f32[4096,128]`, likewise by tree path.
      corrections: with which the plan is priced.
      compiled: what a compiler said of it, or None: `compiler`, `step_seconds`, `peak_bytes`,
        `basis`.
      product_orders: by op index, how products are computed that are not as JAX writes them.
      belief: what of the machine's compiler it rests on, in a few words.
      notes: what else its reader should know, a sentence each.
      marks: of what of the program it needs; see `autoshard.program.fingerprint`.
      requirements: for every requirement its `text`, `source`, whether it is `kept`, `how` it is
        broken, and the `requirement` itself; see `autoshard.problem.requirements.demands`.
    """

    program: str
    fingerprint: str
    options: Mapping[str, Any]
    machine: str
    memory_limit: float
    mesh: MeshShape
    estimate: Estimate
    proof: Proof
    specs: Mapping[str, Mapping[str, PartitionSpec]]
    moves: tuple[Move, ...]
    baselines: tuple[Baseline, ...]
    decisions: Decisions
    reshards: tuple[Reshard, ...]
    types: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    corrections: Corrections = NONE
    compiled: Mapping[str, Any] | None = None
    requirements: tuple[Mapping[str, Any], ...] = ()
    product_orders: Mapping[int, ProductOrder] = field(default_factory=dict)
    belief: str = ""
    notes: tuple[str, ...] = ()
    marks: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data with a schema version."""
        return {
            "schema_version": SCHEMA_VERSION,
            "program": self.program,
            "fingerprint": self.fingerprint,
            "options": dict(self.options),
            "machine": self.machine,
            "memory_limit": self.memory_limit,
            "mesh": dict(zip(self.mesh.names, self.mesh.sizes, strict=True)),
            "estimate": asdict(self.estimate),
            "proof": asdict(self.proof),
            "specs": {
                side: {path: _spec_to_json(spec) for path, spec in specs.items()}
                for side, specs in self.specs.items()
            },
            "types": {side: dict(types) for side, types in self.types.items()},
            "moves": [asdict(move) for move in self.moves],
            "baselines": [asdict(baseline) for baseline in self.baselines],
            "decisions": self.decisions.to_json(),
            "reshards": [asdict(reshard) for reshard in self.reshards],
            "corrections": self.corrections.to_json(),
            "compiled": None if self.compiled is None else dict(self.compiled),
            "requirements": [dict(one) for one in self.requirements],
            "product_orders": [
                {"op": op, **asdict(order)} for op, order in self.product_orders.items()
            ],
            "belief": self.belief,
            "notes": list(self.notes),
            "marks": self.marks,
        }

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """The inverse of `to_json`.

        Raises:
          PlanError: not a plan, of another schema version, or with missing or faulty fields; all
            of them are named.
        """
        if not isinstance(data, dict) or "schema_version" not in data:
            raise PlanError("not a plan: there is no schema_version")
        if data["schema_version"] != SCHEMA_VERSION:
            raise PlanError(
                f"the plan has schema version {data['schema_version']!r}, this autoshard reads "
                f"{SCHEMA_VERSION}: search again"
            )
        newer = {"corrections": NONE.to_json(), "compiled": None, "belief": "", "marks": ""} | {
            name: [] for name in ("requirements", "product_orders", "notes")
        }
        data = {**newer, **data}
        missing = [f.name for f in fields(cls) if f.name not in data]
        if missing:
            raise PlanError(f"the plan is damaged: it lacks {', '.join(missing)}")
        try:
            plan = cls(
                program=data["program"],
                fingerprint=data["fingerprint"],
                options=dict(data["options"]),
                machine=data["machine"],
                memory_limit=float(data["memory_limit"]),
                mesh=MeshShape(tuple(data["mesh"]), tuple(int(n) for n in data["mesh"].values())),
                estimate=Estimate(**data["estimate"]),
                proof=Proof(
                    **{
                        **data["proof"],
                        "meshes": tuple(tuple(row) for row in data["proof"]["meshes"]),
                    }
                ),
                specs={
                    side: {path: _spec_from_json(spec) for path, spec in specs.items()}
                    for side, specs in data["specs"].items()
                },
                types={side: dict(types) for side, types in data["types"].items()},
                moves=tuple(Move(**{**m, "axes": tuple(m["axes"])}) for m in data["moves"]),
                baselines=tuple(Baseline(**b) for b in data["baselines"]),
                decisions=Decisions.from_json(data["decisions"]),
                reshards=tuple(Reshard.from_json(r) for r in data["reshards"]),
                corrections=Corrections.from_json(data["corrections"]),
                compiled=None if data["compiled"] is None else dict(data["compiled"]),
                requirements=tuple(dict(one) for one in data["requirements"]),
                belief=str(data["belief"]),
                notes=tuple(map(str, data["notes"])),
                marks=str(data["marks"]),
                product_orders={
                    int(one["op"]): ProductOrder(tuple(one["result"]), tuple(one["contracted"]))
                    for one in data["product_orders"]
                },
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise PlanError(f"the plan is damaged: {type(error).__name__}: {error}") from error
        faults = list(_faults(plan))
        if faults:
            raise PlanError("\n  - ".join(["the plan is damaged:", *faults[:20]]))
        return plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan; a file that is there is replaced only once the new one is whole."""
        target = Path(path)
        handle, temporary = tempfile.mkstemp(dir=target.parent or ".", prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(self.to_json(), file)
            os.chmod(temporary, 0o666 & ~_umask())  # as any new file; mkstemp's are private
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan.

        Raises:
          PlanError: the file is not there, is no JSON, or is no plan.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise PlanError(
                f"cannot read the plan {os.fspath(path)!r}: {error.strerror}"
            ) from error
        except UnicodeDecodeError as error:
            raise PlanError(f"{os.fspath(path)!r} is damaged: it is no text") from error
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(
                f"{os.fspath(path)!r} is damaged: no JSON at line {error.lineno}, "
                f"column {error.colno} ({error.msg})"
            ) from error
        try:
            return cls.from_json(data)
        except PlanError as error:
            raise PlanError(f"{os.fspath(path)!r}: {error}") from error


def _faults(plan: Plan) -> Iterator[str]:
    """What contradicts itself among fields that are each of the right form."""
    for side, specs in plan.specs.items():
        for path, spec in specs.items():
            named = {axis for entry in spec for axis in _axes(entry)}
            if not named <= set(plan.mesh.names):
                unknown = ", ".join(sorted(named - set(plan.mesh.names)))
                yield f"{side} {path}: no axis {unknown} in the mesh {plan.mesh}"
    axes = len(plan.mesh.names)
    for name in ("stored", "copy", "assignment"):
        if any(item is not None and len(item) != axes for item in getattr(plan.decisions, name)):
            yield f"decisions: {name} holds entries for another number of axes than {axes}"


def _axes(entry: Any) -> tuple[str, ...]:
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _spec_to_json(spec: PartitionSpec) -> list[Any]:
    return [list(entry) if isinstance(entry, tuple) else entry for entry in spec]


def _spec_from_json(data: list[Any]) -> PartitionSpec:
    return PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in data))
