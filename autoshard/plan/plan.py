"""A plan: what was decided, what it costs, how it was proven, and how to read it back.

A plan is immutable and stands alone: its JSON file holds the mesh, the layouts of all inputs and
outputs, every planned collective, the price, the proof and the decisions from which
`autoshard.lower` makes a program. It names its program by a fingerprint of the traced graph, and
refuses to be used with another one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from jax.sharding import PartitionSpec

from autoshard.cost.corrections import NONE, Corrections
from autoshard.files import read_json, typed, write_whole
from autoshard.files.errors import shown
from autoshard.plan.decisions import Decisions, Reshard
from autoshard.plan.records import (
    Baseline,
    Estimate,
    KeptValue,
    MeshShape,
    Move,
    Proof,
    Transfer,
    Work,
)
from autoshard.plan.short import short_report
from autoshard.plan.work import work_texts
from autoshard.plan.written import WrittenPlan
from autoshard.program.dim_order import ProductOrder
from autoshard.units import format_seconds

SCHEMA_VERSION = 3


class PlanError(ValueError):
    """A plan file that cannot be used: damaged, of another version, or for another program."""


@dataclass(frozen=True, slots=True)
class Plan:
    """See the module docstring.

    Attributes:
      program: name of the program; on the command line, how it is found again.
      fingerprint: of the traced graph.
      options: `donate_argnums`, `trip_counts`, `user_rules`, `saved`, `offloaded`, `microbatches`,
        `early_casts`, `late_sums` and `early_pads` with which it was traced.
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
      row_major: by op index, the products that are asked to lie in memory by rows.
      belief: what of the machine's compiler it rests on, in a few words.
      flags: which set of its flags, see `autoshard.machine.compiler.FLAGS`.
      notes: what else its reader should know, a sentence each.
      marks: of what of the program it needs; see `autoshard.program.fingerprint`.
      argument_names: of the step's parameters by position, as far as its function tells them.
      kept: what is saved for the backward pass and which products are computed again there, where
        the search chose that.
      transfers: between the memories of chips and of their hosts.
      work: tokens and products of a step, whatever the plan; None in files that do not say.
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
    row_major: tuple[int, ...] = ()
    belief: str = ""
    flags: str = "default"
    notes: tuple[str, ...] = ()
    marks: str = ""
    kept: tuple[KeptValue, ...] = ()
    argument_names: tuple[str, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    work: Work | None = None

    @property
    def title(self) -> str:
        """Program, machine and mesh."""
        return f"{self.program} on {self.machine}, mesh {self.mesh}"

    def __str__(self) -> str:
        throughput = work_texts(self.work, self.estimate.step_seconds, math.prod(self.mesh.sizes))
        return short_report(
            self.title,
            self.estimate,
            self.proof,
            self.moves,
            self.baselines,
            self.memory_limit,
            throughput,
        )

    def __repr__(self) -> str:
        return f"<Plan of {self.title}: {format_seconds(self.estimate.step_seconds)} a step>"

    def to_json(self) -> dict[str, Any]:
        """Plain data with a schema version."""
        return {
            "schema_version": SCHEMA_VERSION,
            "program": self.program,
            "fingerprint": self.fingerprint,
            "options": dict(self.options),
            "machine": self.machine,
            "memory_limit": self.memory_limit if math.isfinite(self.memory_limit) else None,
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
            "row_major": list(self.row_major),
            "belief": self.belief,
            "flags": self.flags,
            "notes": list(self.notes),
            "marks": self.marks,
            "kept": [asdict(one) for one in self.kept],
            "argument_names": list(self.argument_names),
            "transfers": [asdict(one) for one in self.transfers],
            "work": None if self.work is None else asdict(self.work),
        }

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """The inverse of `to_json`.

        Raises:
          PlanError: not a plan, of another schema version, or with missing or faulty fields; all
            of them are named.
        """
        if not isinstance(data, dict) or "schema_version" not in data:
            raise PlanError(
                "not a plan: there is no schema_version; give what `autoshard search -o` wrote"
            )
        if data["schema_version"] != SCHEMA_VERSION:
            raise PlanError(
                f"the plan has schema version {shown(data['schema_version'])}, this autoshard "
                f"reads {SCHEMA_VERSION}: search again"
            )
        needed = [one.name for one in fields(WrittenPlan) if one.default is one.default_factory]
        if missing := [name for name in needed if name not in data]:
            raise PlanError(f"the plan is damaged: it lacks {', '.join(missing)}; search again")
        written = typed(data, WrittenPlan, name="the plan is damaged", error=PlanError)
        if faults := list(written.faults()):
            raise PlanError("\n  - ".join(["the plan is damaged:", *faults[:20]]))
        return cls(
            program=written.program,
            fingerprint=written.fingerprint,
            options=dict(written.options),
            machine=written.machine,
            memory_limit=math.inf if written.memory_limit is None else written.memory_limit,
            mesh=MeshShape(tuple(written.mesh), tuple(written.mesh.values())),
            estimate=written.estimate,
            proof=written.proof,
            specs=written.partition_specs(),
            types=written.types,
            moves=written.moves,
            baselines=written.baselines,
            decisions=written.decided(),
            reshards=written.reshards,
            corrections=written.corrections.record(),
            compiled=None if written.compiled is None else dict(written.compiled),
            requirements=tuple(dict(one) for one in written.requirements),
            product_orders=written.orders(),
            row_major=written.row_major,
            belief=written.belief,
            flags=written.flags,
            notes=written.notes,
            marks=written.marks,
            kept=written.kept,
            argument_names=written.argument_names,
            transfers=written.transfers,
            work=written.work,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan; see `autoshard.files.write_whole`."""
        write_whole(path, json.dumps(self.to_json()).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan.

        Raises:
          PlanError: the file is not there, is not JSON, or is not a plan.
        """
        data = read_json(path, "the plan", error=PlanError)
        try:
            return cls.from_json(data)
        except PlanError as error:
            raise PlanError(f"{os.fspath(path)!r}: {error}") from error


def _spec_to_json(spec: PartitionSpec) -> list[Any]:
    return [list(entry) if isinstance(entry, tuple) else entry for entry in spec]
