"""Whether a plan keeps requirements, from its layouts and moves alone.

This knows nothing of problems and solvers: every plan is held to its requirements here before
anyone sees it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autoshard.plan.decisions import Decisions
from autoshard.plan.fits import fits, needed_bytes
from autoshard.plan.plan import Estimate, MeshShape, Move
from autoshard.problem.requirements.bind import Bound, shown_layout, shown_value
from autoshard.problem.requirements.records import (
    ChangeLimit,
    CollectiveLimit,
    LogicalRules,
    MemoryLimit,
)
from autoshard.program.layout import REPLICATED, Layout
from autoshard.program.layout_pattern import LayoutPattern
from autoshard.program.select import group_path, is_inside, named_path
from autoshard.program.trace import Program
from autoshard.units import counted


def broken(
    program: Program,
    bound: Bound,
    mesh: MeshShape,
    decisions: Decisions,
    estimate: Estimate,
    moves: Sequence[Move],
) -> list[str]:
    """How a plan breaks a requirement, place by place; empty where it is kept.

    Args:
      program: what was planned.
      bound: the requirement, on this program and mesh.
      mesh: of the plan.
      decisions, estimate, moves: the plan.
    """
    requirement = bound.requirement
    if isinstance(requirement, MemoryLimit):
        if fits(estimate, requirement.bytes):
            return []
        return [f"{needed_bytes(estimate)} bytes, with the peak at {estimate.peak_at}"]
    if isinstance(requirement, CollectiveLimit):
        found = limited_amount(requirement, moves)
        unit = "bytes" if requirement.count is None else "collectives"
        over = found > requirement.most * (1 + 1e-8)
        return [f"{found:.0f} {unit}"] if over else []
    if isinstance(requirement, ChangeLimit):
        found = changed(program, bound, mesh, decisions)
        return [counted(len(found), "change")] if len(found) > requirement.count else []
    if isinstance(requirement, LogicalRules) and bound.names:
        return _without_rules(bound, mesh, decisions)
    faults: list[str] = []
    for value, pattern in bound.pins:
        layout = _stored(decisions, value, mesh)
        if not _is_in(pattern, layout, mesh):
            faults.append(_is(program, value, layout, mesh))
    for value, pattern in bound.forbids:
        for layout in (_stored(decisions, value, mesh), decisions.copy[value]):
            if layout is not None and _is_in(pattern, layout, mesh):
                faults.append(_is(program, value, layout, mesh))
    if bound.ties:
        layouts = {_stored(decisions, value, mesh) for value in bound.ties}
        if len(layouts) > 1:
            faults += [
                _is(program, value, _stored(decisions, value, mesh), mesh) for value in bound.ties
            ]
    return faults


def limited_amount(limit: CollectiveLimit, moves: Sequence[Move]) -> float:
    """How many collectives, or bytes of them, of those that a limit is about are in a plan."""
    total = 0.0
    for move in moves:
        wanted = move.kind != "all_slice" if limit.kind is None else move.kind == limit.kind
        wanted = wanted and (not limit.over or bool(set(limit.over) & set(move.axes)))
        if wanted and (not limit.inside or is_inside(limit.inside, move.scope)):
            total += move.count * (1.0 if limit.bytes is None else float(move.bytes))
    return total


def changed(program: Program, bound: Bound, mesh: MeshShape, decisions: Decisions) -> list[str]:
    """The inputs that are laid out otherwise than before, by the paths that layers share."""
    groups: dict[str, None] = {}
    for value, before in bound.before:
        if not _is_in(before, _stored(decisions, value, mesh), mesh):
            path = group_path(program.values[value].path)
            groups[named_path(path, program.argument_names)] = None
    return list(groups)


def found_rules(
    bound: Bound, mesh: MeshShape, decisions: Decisions
) -> Mapping[str, tuple[str, ...]]:
    """The logical axis rules that a plan follows, if it follows any: name to axes, major first."""
    axes: dict[str, set[int]] = {}
    for value, names in bound.names:
        layout = _stored(decisions, value, mesh)
        for position, name in enumerate(names):
            if name is not None:
                here = {axis for axis, dimension in enumerate(layout) if dimension == position}
                axes.setdefault(name, set()).update(here)
    return {name: tuple(mesh.names[a] for a in sorted(found)) for name, found in axes.items()}


def _without_rules(bound: Bound, mesh: MeshShape, decisions: Decisions) -> list[str]:
    rules = found_rules(bound, mesh, decisions)
    faults = []
    for value, names in bound.names:
        layout = _stored(decisions, value, mesh)
        for position, name in enumerate(names):
            here = {mesh.names[a] for a, d in enumerate(layout) if d == position}
            earlier = {mesh.names[a] for a, d in enumerate(layout) if 0 <= d < position}
            wanted = set(rules.get(name, ()) if name is not None else ()) - earlier
            if here != wanted:
                faults.append(f"dimension {position} ({name}) of value {value} lies on {here}")
    return faults


def _stored(decisions: Decisions, value: int, mesh: MeshShape) -> Layout:
    return decisions.stored[value] or (REPLICATED,) * len(mesh.sizes)


def _is_in(pattern: LayoutPattern, layout: Layout, mesh: MeshShape) -> bool:
    return bool(pattern.mask(np.array([layout]), mesh.names, mesh.sizes)[0])


def _is(program: Program, value: int, layout: Layout, mesh: MeshShape) -> str:
    return f"{shown_value(program, value)} is {shown_layout(program, value, layout, mesh)}"
