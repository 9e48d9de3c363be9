"""Splits the price of a stage, planned by the one-mesh solver, over the stage's fragments.

One plan covers F, the backward pass and the update. So weights, gradients and the values that F
keeps have one sharding each. The seconds of every op and collective, from the independent
evaluator, count for the fragment in whose scope they are. Everything else is done once a step.

What lies in the memory of the host takes none of the device, and is counted apart: what a
microbatch keeps there, and state. Of its transfers counts what no kernel of the fragment hides.

Three things are approximate. Fusion and overlap are those of the one program, although F and the
backward pass run as two programs. If the plan keeps a gathered weight from F to the backward pass,
the programs gather it once more. If a sent value arrives with the sharding that the reader wants,
the sender's sharding is assumed to cost no more than the transfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jax.sharding import PartitionSpec

from autoshard.cost.step_prices import StepPrices
from autoshard.machine.machine import Machine
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import compute_seconds, evaluate
from autoshard.plan.plan import MeshShape, Plan
from autoshard.program.layout import to_partition_spec
from autoshard.program.trace import Program
from autoshard.search.assemble import prices_of
from autoshard.search.meshes.stage_program import Argument, kind_of
from autoshard.solve.schedule.task import Kind


@dataclass(frozen=True, slots=True, eq=False)
class StagePrice:
    """The price of a stage on a mesh.

    Attributes:
      mesh: the mesh shape.
      seconds: seconds of F, B, W or BW for one microbatch.
      update_seconds: seconds of the work that is done once a step.
      resident_bytes: bytes per device of state and totals of gradients.
      workspace_bytes: bytes per device that are live beside those and what a microbatch keeps.
      kept_bytes: bytes per device and microbatch that are kept from F to the backward pass.
      handed_bytes: bytes per device and microbatch that B hands to W.
      peak_bytes: peak bytes per device with one microbatch.
      specs: the shardings of the program's arguments, in flat order.
      plan: the plan of the stage that is priced.
      host_bytes: bytes per device and microbatch in the memory of its host, from F to the end of
        the backward pass.
      host_resident_bytes: bytes per device of state that is there always.
    """

    mesh: MeshShape
    seconds: Mapping[Kind, float]
    update_seconds: float
    resident_bytes: float
    workspace_bytes: float
    kept_bytes: float
    handed_bytes: float
    peak_bytes: float
    specs: tuple[PartitionSpec, ...]
    plan: Plan
    host_bytes: float = 0.0
    host_resident_bytes: float = 0.0

    def busy_seconds(self, microbatches: int) -> float:
        """Return the seconds of a step in which the stage is busy."""
        return microbatches * sum(self.seconds.values()) + self.update_seconds


def price(
    plan: Plan,
    program: Program,
    machine: Machine,
    arguments: tuple[Argument, ...],
    *,
    prices: StepPrices | None = None,
) -> StagePrice:
    """Return the price of a stage's plan, split over the stage's fragments.

    Args:
      plan: the plan of `program` on `machine`.
      arguments: the arguments of the stage's program.
      prices: `prices_of` these, if already known.
    """
    prices = prices_of(plan, program, machine) if prices is None else prices
    decisions = plan.decisions
    seconds: dict[Kind | None, float] = {}
    for op, _, spent in compute_seconds(prices, decisions):
        kind = kind_of(op.scope)
        seconds[kind] = seconds.get(kind, 0.0) + spent
    evaluation = evaluate(prices, decisions, plan.mesh.names)
    for move in (*evaluation.moves, *evaluation.transfers):
        kind = kind_of(move.scope)
        seconds[kind] = seconds.get(kind, 0.0) + move.exposed_seconds
    times = max((op.weight for op in program.ops if kind_of(op.scope)), default=1.0)
    inputs = list(zip(program.inputs, arguments, strict=True))
    always = [value for value, one in inputs if one.group in ("state", "totals")]
    resident = sum(_local(prices, decisions, value) for value in always)
    sent = [value for value, one in inputs if one.group == "sent"]
    kept, handed, hosted = _between(prices, decisions, sent)
    workspace = max(plan.estimate.peak_bytes - resident - kept, 0.0)
    return StagePrice(
        mesh=plan.mesh,
        seconds={k: spent / times for k, spent in seconds.items() if k is not None},
        update_seconds=seconds.get(None, 0.0),
        resident_bytes=resident,
        workspace_bytes=workspace,
        kept_bytes=kept,
        handed_bytes=handed,
        peak_bytes=float(plan.estimate.peak_bytes),
        specs=tuple(
            to_partition_spec(
                decisions.stored[value] or (-1,) * len(plan.mesh.sizes),
                plan.mesh.names,
                len(program.values[value].shape),
            )
            for value in program.inputs
        ),
        plan=plan,
        host_bytes=hosted,
        host_resident_bytes=sum(_hosted(prices, decisions, value) for value in always),
    )


def _local(prices: StepPrices, decisions: Decisions, value: int) -> float:
    """Return the bytes per device of a value as stored, with the compiler's heap overhead.

    What lies on the host takes none.
    """
    layout = decisions.stored[value]
    if layout is None or prices.program.values[value].host:
        return 0.0
    return float(prices.held_bytes(value, np.array(layout))) * prices.heap_factor(value)


def _hosted(prices: StepPrices, decisions: Decisions, value: int) -> float:
    """Return the bytes per device of a value in the memory of the host."""
    layout = decisions.stored[value]
    if layout is None or not prices.program.values[value].host:
        return 0.0
    return float(prices.local_bytes(value, np.array(layout)))


def _between(
    prices: StepPrices, decisions: Decisions, sent: list[int]
) -> tuple[float, float, float]:
    """Return the bytes kept between F and the backward pass, and between B and W; and on the host.

    The first two are of the device. The third is what lies on the host after F or B.
    """
    program = prices.program
    kinds: list[Kind | None] = [kind_of(op.scope) for op in program.ops]
    readers: dict[int, set[Kind | None]] = {}
    for op in program.ops:
        kind: Kind | None = kinds[op.index]
        for value in op.inputs:
            if value >= 0:
                readers.setdefault(value, set[Kind | None]()).add(kind)
    inside = {region.index for region in program.regions if region.parent >= 0}
    kept = handed = hosted = 0.0
    for value, reading in readers.items():
        producer = program.values[value].producer
        maker = kinds[producer] if producer >= 0 else None
        ends = producer < 0 or program.ops[producer].primitive in ("scan_stack", "yield")
        if not ends and program.ops[producer].region in inside:
            continue  # local to one loop iteration; values that leave a loop are stacked or yielded
        if maker == "F" or value in sent:
            first = maker == "F" or "F" in reading
            if first and reading & {"B", "W", "BW"}:
                kept += _local(prices, decisions, value)
        if (maker in ("F", "B") or value in sent) and "W" in reading:
            handed += _local(prices, decisions, value)
        if maker is not None or value in sent:
            hosted += _hosted(prices, decisions, value) if reading - {maker} else 0.0
    return kept, handed, hosted
