"""What a program itself demands: constraints, shardings of `jit` and in types, `shard_alike`.

A sharding that the user wrote is a pin: dimensions that are UNCONSTRAINED are open, all others are
closed (https://docs.jax.dev/en/latest/jax.lax.html#jax.lax.with_sharding_constraint). Its axes are
those of the plan that have the same names, whatever their sizes; but an axis that has one device in
the user's own mesh cuts nothing there, so that nothing is said of it (`own_mesh_notes`). The
`in_shardings` and `out_shardings` of a `jax.jit` pin what goes in and what comes out;
`jax.experimental.shard_alike` ties its two results. An `optimization_barrier` demands that each of
its arrays comes out as it goes in, which is its rule; it stays where it is.

On a mesh with Explicit axes, the shardings of the arguments, `out_sharding=` and `reshard` are pins
too, and say nothing of Auto axes. The types that JAX works out from them are none, and neither are
those of cotangents (`autoshard.compat.explicit_types`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from autoshard import compat
from autoshard.plan.plan import MeshShape
from autoshard.program.layout_pattern import Dimension, LayoutPattern
from autoshard.program.select import RequirementError, shown_path
from autoshard.program.trace import Program
from autoshard.program.vocabulary import INLINED, RESHARDS


@dataclass(frozen=True, slots=True)
class Constraint:
    """One demand of the program.

    Attributes:
      values: that it is about; one for a pin, two for a tie.
      layout: that they are stored in; None ties them to each other.
      mesh: axis names and sizes of the mesh that the user wrote; empty for a tie.
      source: what and where it is, as `with_sharding_constraint at model.py:41`.
    """

    values: tuple[int, ...]
    layout: LayoutPattern | None
    mesh: tuple[tuple[str, int], ...]
    source: str


def constraints_of(program: Program) -> tuple[Constraint, ...]:
    """Everything that the program demands, in program order.

    Raises:
      RequirementError: a sharding is no `NamedSharding`, so that its axes have no names.
    """
    return tuple(_constraints(program))


def _constraints(program: Program) -> Iterator[Constraint]:
    equations = [e for e in _equations(program.jaxpr.jaxpr) if e.primitive.name in _ASKING]
    ops = [op for op in program.ops if op.primitive in _ASKING]
    for equation, op in zip(equations, ops, strict=True):
        if op.primitive == "shard_alike":
            yield Constraint(op.outputs, None, (), f"shard_alike at {op.line or '(no line)'}")
            continue
        rank = len(program.values[op.outputs[0]].shape)
        if op.primitive == compat.RESHARD:
            if rank and (op.recomputed or not op.backward):
                source = f"{equation.params['asked_by']} at {op.line or '(no line)'}"
                yield _typed(op.outputs[0], rank, equation.params["dst_sharding"], source)
            continue
        source = f"with_sharding_constraint at {op.line or '(no line)'}"
        unconstrained = equation.params.get("unconstrained_dims") or ()
        found = _pattern(equation.params["sharding"], rank, unconstrained, source)
        yield Constraint(op.outputs, *found, source)
    for value, sharding in zip(program.inputs, program.argument_shardings, strict=False):
        if sharding is not None:
            record = program.values[value]
            source = f"sharding of the argument {shown_path(program, value)}"
            yield _typed(value, len(record.shape), sharding, source)
    jaxpr = program.jaxpr.jaxpr
    inputs = dict(zip(jaxpr.invars, program.inputs, strict=True))
    outputs: dict[Any, list[int]] = {}
    for variable, value in zip(jaxpr.outvars, program.outputs, strict=True):
        if not compat.is_literal(variable):
            outputs.setdefault(variable, []).append(value)
    for equation in jaxpr.eqns:
        sides = (("in_shardings", equation.invars), ("out_shardings", equation.outvars))
        for key, variables in sides:
            for variable, sharding in zip(variables, equation.params.get(key, ()), strict=False):
                if type(sharding).__name__ == "UnspecifiedValue" or compat.is_literal(variable):
                    continue
                known = [inputs[variable]] if variable in inputs else outputs.get(variable, [])
                for value in known:
                    path = shown_path(program, value)
                    source = f"{key} of {equation.params.get('name', 'jit')} at {path or 'result'}"
                    rank = len(program.values[value].shape)
                    yield Constraint((value,), *_pattern(sharding, rank, (), source), source)


_ASKING = ("shard_alike", *RESHARDS)


def _typed(value: int, rank: int, sharding: NamedSharding, source: str) -> Constraint:
    """What a sharding in a type asks for: of Auto axes nothing."""
    if sharding.spec.unreduced:
        raise RequirementError(
            f"{source}: {sharding.spec} leaves sums unreduced, which a plan decides by itself; "
            "leave `unreduced` out, or plan with `--ignore-constraints`"
        )
    said = compat.said_axes(sharding.mesh)
    silent = tuple(name for name in sharding.mesh.axis_names if name not in said)
    return Constraint((value,), *_pattern(sharding, rank, (), source, silent), source)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations in the order in which `autoshard.program.flatten` lays them out."""
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name in INLINED:
            yield from _equations(compat.called_jaxpr(equation)[0])
        elif name == "scan":
            yield from _equations(params["jaxpr"].jaxpr)
        elif name == "while":
            yield from _equations(params["cond_jaxpr"].jaxpr)
            yield from _equations(params["body_jaxpr"].jaxpr)
        elif name == "cond":
            for branch in params["branches"]:
                yield from _equations(branch.jaxpr)
        else:
            yield equation


def _pattern(
    sharding: Any, rank: int, unconstrained: Any, source: str, silent: tuple[str, ...] = ()
) -> tuple[LayoutPattern, tuple[tuple[str, int], ...]]:
    if not isinstance(sharding, NamedSharding):
        raise RequirementError(
            f"{source}: a {type(sharding).__name__} names no axes; write a NamedSharding"
        )
    mesh = tuple(zip(sharding.mesh.axis_names, sharding.mesh.axis_sizes, strict=True))
    free = tuple(name for name, size in mesh if size == 1 or name in silent)
    if len(free) == len(mesh):  # one device: nothing is said
        return LayoutPattern((), more=True, free=free), mesh
    dimensions = []
    entries = [*sharding.spec, *(None for _ in range(rank - len(sharding.spec)))]
    for number, entry in enumerate(entries):
        if entry is PartitionSpec.UNCONSTRAINED or number in unconstrained:
            dimensions.append(Dimension((), open=True))
        else:
            axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
            dimensions.append(Dimension(tuple(axis for axis in axes if axis not in free)))
    return LayoutPattern(tuple(dimensions), free=free), mesh


def own_mesh_notes(constraints: Sequence[Constraint], shape: MeshShape) -> tuple[str, ...]:
    """How the axes of the program's own meshes were taken for those of a plan, where they differ.

    Args:
      constraints: of the program.
      shape: the mesh of the plan.
    """
    counts = Counter(one.mesh for one in constraints if one.mesh)
    plan = dict(zip(shape.names, shape.sizes, strict=True))
    return tuple(
        f"{count} sharding{'s' if count > 1 else ''} of the program {'are' if count > 1 else 'is'} "
        f"on a mesh ({_shown(mesh)}), the plan's is ({_shown(tuple(plan.items()))}): "
        f"{_matched(mesh, plan)}"
        for mesh, count in counts.items()
        if dict(mesh) != plan
    )


def _matched(mesh: tuple[tuple[str, int], ...], plan: Mapping[str, int]) -> str:
    alone = [name for name, size in mesh if size == 1]
    named = [name for name, size in mesh if size > 1 and name in plan]
    lost = [name for name, size in mesh if size > 1 and name not in plan]
    if not named and not lost:
        return "on one device they ask for nothing"
    texts = [f"{', '.join(named)} matched by name"] if named else []
    texts += [f"no axis named {', '.join(lost)}"] if lost else []
    texts += [f"of {', '.join(alone)}, with one device, nothing is asked"] if alone else []
    return "; ".join(texts)


def _shown(mesh: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh)
