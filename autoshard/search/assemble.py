"""Builds a `Plan` from decisions: the record of the decisions with everything a reader needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoshard import compat
from autoshard.compiler.belief import belief
from autoshard.cost.step_prices import StepPrices, step_prices
from autoshard.machine.machine import Machine
from autoshard.plan.decisions import Decisions, Reshard
from autoshard.plan.evaluate import Evaluation, evaluate
from autoshard.plan.fits import within
from autoshard.plan.plan import Baseline, MeshShape, Plan, Proof
from autoshard.plan.work import work_of
from autoshard.program.facts import Facts
from autoshard.program.fingerprint import marks
from autoshard.program.layout import to_partition_spec
from autoshard.program.trace import Program
from autoshard.xla import Forecast, analyse, forecast


def assemble(
    prices: StepPrices,
    decisions: Decisions,
    shape: MeshShape,
    evaluation: Evaluation,
    *,
    proof: Proof,
    memory_limit: float,
    baselines: tuple[Baseline, ...] = (),
    options: Mapping[str, Any] | None = None,
    requirements: tuple[Mapping[str, Any], ...] = (),
    notes: tuple[str, ...] = (),
) -> Plan:
    """Return the plan that records `decisions`.

    Args:
      prices: the prices of the program on the machine.
      decisions: the decisions, tidied.
      shape: the mesh, with the sizes that `prices` are for.
      evaluation: the evaluation of the decisions, from `autoshard.plan.evaluate`.
      proof: the bound and gap of the plan.
      memory_limit: the memory limit of the plan, in bytes per device.
      baselines: other schemes on the same mesh.
      options: extra options to record in the plan beside those of the trace.
      requirements: the verdict on each requirement, from
        `autoshard.problem.requirements.demands`.
      notes: what else a reader should know.
    """
    program = prices.program
    own = prices.machine.chip.compiler
    return Plan(
        program=program.name,
        fingerprint=program.fingerprint,
        options={**program.options, **(options or {})},
        machine=prices.machine.name,
        memory_limit=memory_limit,
        mesh=shape,
        estimate=forecasted(prices, decisions, evaluation).estimate,
        proof=proof,
        specs=_specs(program, decisions, shape),
        moves=evaluation.moves,
        transfers=evaluation.transfers,
        baselines=baselines,
        decisions=decisions,
        reshards=reshards_of(prices, decisions),
        types={
            "inputs": {program.values[v].path: str(program.values[v]) for v in program.inputs},
            "outputs": {program.values[v].path: str(program.values[v]) for v in program.outputs},
        },
        corrections=prices.corrections,
        requirements=requirements,
        product_orders=prices.dataflow.product_orders,
        row_major=_row_major(prices),
        belief=belief(own.name, own.flags),
        flags=own.flags,
        notes=notes,
        marks=marks(program.outline),
        argument_names=program.argument_names,
        work=work_of(program, (prices.machine,)),
    )


def prices_of(
    plan: Plan, program: Program, machine: Machine, *, analysed: Facts | None = None
) -> StepPrices:
    """Return the prices of a plan's program on its mesh, with corrections from compiled plans.

    Args:
      plan: a plan of `program`.
      program: the program.
      machine: a machine with as many chips as the mesh has devices.
      analysed: `autoshard.xla.analyse(program, machine.chip)`, if already computed.

    Raises:
      ValueError: as `autoshard.cost.step_prices.step_prices`.
    """
    flow = analyse(program, machine.chip) if analysed is None else analysed
    return step_prices(program, flow, machine, plan.mesh.sizes, plan.corrections)


def priced_anew(plan: Plan, prices: StepPrices) -> Plan:
    """Return the plan with the same decisions under other prices.

    The prices are of the same program, machine and mesh.

    Raises:
      InconsistentPlanError: the decisions are not for this program.
    """
    own = prices.machine.chip.compiler
    evaluation = evaluate(prices, plan.decisions, plan.mesh.names)
    return replace(
        plan,
        estimate=forecasted(prices, plan.decisions, evaluation).estimate,
        moves=evaluation.moves,
        transfers=evaluation.transfers,
        reshards=reshards_of(prices, plan.decisions),
        corrections=prices.corrections,
        product_orders=prices.dataflow.product_orders,
        row_major=_row_major(prices),
        belief=belief(own.name, own.flags),
        flags=own.flags,
    )


def forecasted(prices: StepPrices, decisions: Decisions, evaluation: Evaluation) -> Evaluation:
    """Return the evaluation with peak and seconds in the compiler's own order of the plan.

    If memory does not suffice, XLA:GPU orders kernels for low memory and hides no collectives. The
    last forecast is kept with the prices, as searches ask for that of their plan again.
    """
    estimate = evaluation.estimate
    found = None if estimate.scheduled_bytes is not None else _forecast(prices, decisions)
    if found is None:
        return evaluation
    waited, seconds = found.waited_seconds, None
    if waited is not None:
        hides = within(found.bytes, prices.machine.chip.memory_bytes)
        seconds = estimate.compute_seconds + waited if hides else estimate.upper_seconds
    now = replace(estimate, scheduled_bytes=found.bytes, scheduled_seconds=seconds)
    return replace(evaluation, estimate=now)


def _forecast(prices: StepPrices, decisions: Decisions) -> Forecast | None:
    last: tuple[Decisions, Forecast | None] | None = prices.evaluated.get("forecast")
    if last is None or last[0] != decisions:
        last = decisions, forecast(prices, decisions)
        prices.evaluated["forecast"] = last
    return last[1]


def _row_major(prices: StepPrices) -> tuple[int, ...]:
    """The products that should lie by rows, where that can be asked for."""
    return tuple(sorted(prices.dataflow.row_major)) if compat.rows_can_be_asked_for() else ()


def _specs(program: Program, decisions: Decisions, shape: MeshShape) -> dict[str, dict[str, Any]]:
    def spec(value: int) -> Any:
        layout = decisions.stored[value] or (-1,) * len(shape.sizes)
        return to_partition_spec(layout, shape.names, len(program.values[value].shape))

    return {
        "inputs": {program.values[v].path: spec(v) for v in program.inputs},
        "outputs": {program.values[v].path: spec(v) for v in program.outputs},
    }


def reshards_of(prices: StepPrices, decisions: Decisions) -> tuple[Reshard, ...]:
    """Return the sequences of collectives of all copies in `decisions`, each once."""
    found: dict[object, Reshard] = {}
    for value in prices.program.values:
        before, after = decisions.stored[value.index], decisions.copy[value.index]
        if before is None or after is None:
            continue
        key = (value.shape, value.itemsize, before, after)
        if key not in found:
            steps = prices.reshard(value.index).steps(before, after)
            states = tuple(step.to_state for step in steps)
            found[key] = Reshard(value.shape, value.itemsize, before, after, states)
    return tuple(found.values())
