"""The jitted programs of a script, one for all units that are the same function.

Units with equal nodes, types, shardings and mesh are one program, compiled once. Arguments that no
one reads again are donated: totals of gradients, and state that the step may overwrite, are updated
in place.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from autoshard import compat
from autoshard.lower.mpmd.cut.graph import bytes_of, run
from autoshard.lower.mpmd.instructions import Merged, Run, Script, Slot, Unit, indices_of
from autoshard.lower.mpmd.partition import Partition

Otherwise = Callable[[Callable[..., Any], Sequence[Any]], Callable[..., Any]]
"""(function of a unit, what stands for its arguments) -> what is run in its place."""


def programs_of(
    partition: Partition,
    script: Script,
    layouts: Mapping[Slot, NamedSharding],
    compiler_options: Sequence[Mapping[str, Any]],
    otherwise: Otherwise | None = None,
) -> tuple[Any, ...]:
    """A jitted function for every unit; units that are equal get one and the same.

    Args:
      compiler_options: those of the programs of each mesh.
      otherwise: what is run in place of the function of a unit.
    """
    runs: dict[int, list[tuple[int, Run]]] = {}
    for number, one in enumerate(script.instructions):
        if isinstance(one, Run):
            runs.setdefault(one.unit, []).append((number, one))
    known: dict[Hashable, Any] = {}
    programs = []
    for number, unit in enumerate(script.units):
        if number not in runs:
            programs.append(None)
            continue
        donated = _donated(partition, script, runs[number])
        first = runs[number][0][1]
        shardings = tuple(layouts.get(slot) for slot in first.outputs)
        inner = tuple(layouts.get(slot) for slot in first.inner)
        key = (unit.mesh, unit_key(unit), donated, shardings, inner)
        if key not in known:
            function = function_of(unit, inner)
            if otherwise is not None:
                function = otherwise(function, _arguments(partition, unit, first))
            known[key] = jax.jit(
                function,
                donate_argnums=donated,
                out_shardings=shardings,
                compiler_options=dict(compiler_options[unit.mesh]),
            )
        programs.append(known[key])
    return tuple(programs)


def _arguments(partition: Partition, unit: Unit | Merged, one: Run) -> list[Any]:
    """What stands for the arguments of a unit where it is traced."""
    index = jax.ShapeDtypeStruct((), np.int32)
    return [
        *(compat.shape_struct(_aval(partition, slot)) for slot in one.inputs),
        *(index for _ in indices_of(unit, one.tasks)),
    ]


def _aval(partition: Partition, slot: Slot) -> Any:
    outer = slot.microbatch < 0 or slot.total
    return (partition.outer if outer else partition.cut).graph.avals[slot.value]


def function_of(
    unit: Unit | Merged, inner: Sequence[NamedSharding | None] = ()
) -> Callable[..., tuple[Any, ...]]:
    """A unit as a function of arrays.

    Args:
      inner: how the results of the parts of a merged unit are sharded, where that is fixed.
    """
    if isinstance(unit, Merged):
        return _merged_function(unit, inner)

    def program(*arguments: Any) -> tuple[Any, ...]:
        count = len(unit.inputs)
        known = {}
        for value, sliced, array in zip(unit.inputs, unit.sliced, arguments[:count], strict=True):
            if sliced:
                array = jax.lax.dynamic_index_in_dim(array, arguments[-1], keepdims=False)
            known[value] = array
        results = run(unit.nodes, known, (*unit.outputs, *unit.adds))
        split = len(unit.outputs)
        totals = arguments[count : count + len(unit.adds)]
        sums = [total + new for total, new in zip(totals, results[split:], strict=True)]
        return (*results[:split], *sums)

    program.__name__ = unit.name.replace("@", "_on_mesh_")
    return program


def _merged_function(
    unit: Merged, inner: Sequence[NamedSharding | None]
) -> Callable[..., tuple[Any, ...]]:
    functions = [function_of(part.unit) for part in unit.parts]

    def program(*arguments: Any) -> tuple[Any, ...]:
        known = list(arguments[: unit.inputs])
        indices = iter(arguments[unit.inputs :])
        for part, function in zip(unit.parts, functions, strict=True):
            index = [next(indices)] if part.unit.indexed else []
            for result in function(*(known[number] for number in part.inputs), *index):
                layout = inner[len(known) - unit.inputs] if inner else None
                known.append(
                    result if layout is None else jax.lax.with_sharding_constraint(result, layout)
                )
        return tuple(known[number] for number in unit.outputs)

    program.__name__ = unit.name.replace("+", "_and_")
    return program


def unit_key(unit: Unit | Merged) -> Hashable:
    """Equal for units that are the same function."""
    if isinstance(unit, Merged):
        parts = tuple((unit_key(part.unit), *part[1:]) for part in unit.parts)
        return unit.inputs, parts, unit.outputs
    number: dict[int, int] = {}

    def of(value: int) -> int:
        return number.setdefault(value, len(number))

    inputs = tuple(map(of, unit.inputs))
    nodes = tuple(
        (node.key, tuple(map(of, node.inputs)), tuple(map(of, node.outputs))) for node in unit.nodes
    )
    return (
        inputs,
        unit.sliced,
        nodes,
        tuple(map(of, unit.adds)),
        tuple(map(of, unit.outputs)),
    )


def _donated(
    partition: Partition, script: Script, runs: Sequence[tuple[int, Run]]
) -> tuple[int, ...]:
    """Arguments that no one reads again, each for a result of its type."""

    def kind(slot: Slot) -> tuple[Any, ...]:
        aval = _aval(partition, slot)
        return aval.shape, aval.dtype, bytes_of(aval)

    kept = {
        slot
        for position, pieces in enumerate(script.inputs)
        if position not in partition.donated
        for slots in pieces
        for slot in slots
    }
    results: list[tuple[Any, ...]] = [kind(slot) for slot in runs[0][1].outputs]
    donated = []
    for position, slot in enumerate(runs[0][1].inputs):
        dead = all(
            one.inputs[position] in script.frees[number]
            and one.inputs[position] not in kept
            and one.inputs.count(one.inputs[position]) == 1
            for number, one in runs
        )
        if dead and kind(slot) in results:
            results.remove(kind(slot))
            donated.append(position)
    return tuple(donated)
