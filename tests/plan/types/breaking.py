"""Valid plans with one thing changed by hand, such that they mean something else or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autoshard.plan.plan import MeshShape, Plan
from autoshard.program.rules.ask_shardy import FactorKind
from autoshard.program.trace import Program


def _changed(items: Sequence[Any], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _pick(dice: np.random.Generator, items: Sequence[Any]) -> Any:
    return items[int(dice.integers(len(items)))]


def _other_layout(dice: np.random.Generator, layout: tuple[int, ...], rank: int) -> Any:
    axis = int(dice.integers(len(layout)))
    others = [d for d in range(-1, rank) if d != layout[axis]]
    return _changed(layout, axis, _pick(dice, others))


def break_stored(plan: Plan, program: Program, dice: np.random.Generator) -> Plan:
    decisions = plan.decisions
    values = [v.index for v in program.values if decisions.stored[v.index] and v.shape]
    value = _pick(dice, values)
    layout = _other_layout(dice, decisions.stored[value], len(program.values[value].shape))
    return replace(
        plan, decisions=replace(decisions, stored=_changed(decisions.stored, value, layout))
    )


def break_copy(plan: Plan, program: Program, dice: np.random.Generator) -> Plan:
    decisions = plan.decisions
    value = _pick(dice, [v.index for v in program.values if decisions.copy[v.index]])
    layout = _other_layout(dice, decisions.copy[value], len(program.values[value].shape))
    layout = _pick(dice, [None, layout])
    return replace(plan, decisions=replace(decisions, copy=_changed(decisions.copy, value, layout)))


def break_mode(plan: Plan, program: Program, dice: np.random.Generator) -> Plan:
    decisions = plan.decisions
    value = _pick(dice, [v.index for v in program.values if decisions.copy[v.index]])
    return replace(plan, decisions=replace(decisions, mode=_changed(decisions.mode, value, 0)))


def break_assignment(plan: Plan, program: Program, dice: np.random.Generator) -> Plan:
    """Another factor for an axis, or none, or one that is not there."""
    decisions = plan.decisions
    ops = [
        op
        for op in program.ops
        if decisions.assignment[op.index] is not None
        and any(f.kind is not FactorKind.PASS or f.size > 1 for f in op.rule.factors)
        and op.rule.operands
    ]
    op = _pick(dice, ops)
    assigned = decisions.assignment[op.index]
    axis = int(dice.integers(len(assigned)))
    others = [k for k in range(-1, len(op.rule.factors) + 1) if k != assigned[axis]]
    changed = _changed(assigned, axis, _pick(dice, others))
    return replace(
        plan,
        decisions=replace(decisions, assignment=_changed(decisions.assignment, op.index, changed)),
    )


def break_reshard(plan: Plan, program: Program, dice: np.random.Generator) -> Plan:
    index = int(dice.integers(len(plan.reshards)))
    reshard = plan.reshards[index]
    states = list(reshard.states)
    if dice.random() < 0.5:
        states.pop(int(dice.integers(len(states))))
    else:
        states.append(tuple(() for _ in reshard.shape))
        if states[-1] == states[-2]:
            states[-1] = ((0, 0), *states[-1][1:])
    return replace(
        plan,
        reshards=_changed(plan.reshards, index, replace(reshard, states=tuple(states))),
    )


def break_moves(plan: Plan, program: Program, dice: np.random.Generator) -> Plan:
    index = int(dice.integers(len(plan.moves)))
    move = plan.moves[index]
    names = plan.mesh.names
    changes = [
        None,
        replace(move, kind="all_to_all" if move.kind != "all_to_all" else "all_gather"),
        replace(move, axes=tuple(n for n in names if n not in move.axes) or names[:1]),
        replace(move, bytes=move.bytes + 1),
        replace(move, count=move.count + 1),
    ]
    change = _pick(dice, changes)
    if change is None:
        return replace(plan, moves=plan.moves[:index] + plan.moves[index + 1 :])
    return replace(plan, moves=_changed(plan.moves, index, change))


def break_specs(plan: Plan, program: Program, dice: np.random.Generator) -> Plan:
    from jax.sharding import PartitionSpec

    side = _pick(dice, ["inputs", "outputs"])
    path = _pick(dice, [path for path, spec in plan.specs[side].items()])
    old = plan.specs[side][path]
    new = PartitionSpec() if old != PartitionSpec() else PartitionSpec(plan.mesh.names[0])
    return replace(plan, specs={**plan.specs, side: {**plan.specs[side], path: new}})


def break_types(plan: Plan, program: Program, dice: np.random.Generator) -> Plan:
    side = _pick(dice, ["inputs", "outputs"])
    path = _pick(dice, list(plan.types[side]))
    return replace(plan, types={**plan.types, side: {**plan.types[side], path: "f16[3]"}})


def break_mesh(plan: Plan, program: Program, dice: np.random.Generator) -> Plan:
    sizes = list(plan.mesh.sizes)
    sizes[int(dice.integers(len(sizes)))] *= int(_pick(dice, [2, 3]))
    return replace(plan, mesh=MeshShape(plan.mesh.names, tuple(sizes)))


BREAKS = (
    break_stored,
    break_copy,
    break_mode,
    break_assignment,
    break_reshard,
    break_moves,
    break_specs,
    break_types,
    break_mesh,
)


def broken(plan: Plan, program: Program, seed: int) -> tuple[str, Plan]:
    """What was done, and the plan after it."""
    dice = np.random.default_rng(seed)
    change = BREAKS[seed % len(BREAKS)]
    return change.__name__, change(plan, program, dice)
