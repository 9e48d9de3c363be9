"""Arguments for which slices start at, beyond and below the ends of a dimension that is cut.

    cache = lax.dynamic_update_slice(cache, new, (0, position))       cache[:, 64@x]

JAX clamps a start so that the slice lies inside. A compiler that cuts the dimension may not, and
arguments made at random hardly ever ask for it: the judge of numbers sets the integers from which
such starts are computed to each of these places in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from autoshard.plan.plan import Plan
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.trace import Op, Program

_FIRST_START = {"dynamic_update_slice": 2, "dynamic_slice": 1}


def arguments_at_ends(
    program: Program, plan: Plan, arguments: Sequence[Any]
) -> list[tuple[str, Sequence[Any]]]:
    """Arguments whose integers start slices of cut dimensions elsewhere, each with its name.

    Args:
      program, plan: the step, and how its dimensions are cut.
      arguments: of the step, real arrays; all but such integers stay.

    An integer on which the condition of a `while` depends stays, too. An empty list where no start
    of a cut dimension depends on an argument.
    """
    flat, tree = jax.tree.flatten(arguments)
    starts, last, size = _cut_starts(program, plan)
    into = _inputs_behind(program, starts) - _inputs_behind(program, _conditions(program))
    chosen = [k for k, value in enumerate(program.inputs) if value in into]
    if not chosen:
        return []
    found = []
    for name, place in (("at the end", last), ("beyond the end", size + 3), ("below 0", -size - 6)):
        moved = list(flat)
        for k in chosen:
            moved[k] = _filled(flat[k], place)
        found.append((name, jax.tree.unflatten(tree, moved)))
    return found


def _cut_starts(program: Program, plan: Plan) -> tuple[set[int], int, int]:
    """The values that start slices of cut dimensions; the largest last start, and the largest size.

    A dimension of which the slice takes all has no place to start at.
    """
    chosen = ChosenStrategies(plan.decisions, plan.mesh.sizes)
    starts, last, longest = set[int](), 0, 0
    for op in program.ops:
        if op.primitive not in _FIRST_START or plan.decisions.assignment[op.index] is None:
            continue
        whole, part = _shapes(program, op)
        made = op.outputs[0]  # cut where it is read, if not before
        later = plan.decisions.stored[made] or (), plan.decisions.copy[made] or ()
        cut = {*chosen(op).reads[0][0].tolist(), *later[0], *later[1]}
        for d in sorted(d for d in cut if d >= 0):
            start = op.inputs[_FIRST_START[op.primitive] + d]
            if part[d] < whole[d] and start >= 0:
                starts.add(start)
                last, longest = max(last, whole[d] - part[d]), max(longest, whole[d])
    return starts, last, longest


def _shapes(program: Program, op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of what is sliced, and of the slice."""
    if op.primitive == "dynamic_slice":
        return op.literal_shapes[0], program.values[op.outputs[0]].shape
    return op.literal_shapes[0], op.literal_shapes[1]


def _conditions(program: Program) -> set[int]:
    """The conditions of `while` loops: flags inside of them that no op reads."""
    read = {value for op in program.ops for value in op.inputs}
    return {
        value
        for op in program.ops
        if program.regions[op.region].kind == "while"
        for value in op.outputs
        if value not in read and program.values[value].dtype == "bool"
    }


def _inputs_behind(program: Program, values: set[int]) -> set[int]:
    """The integers among the inputs on which some values depend."""
    ends = dict(program.carries)
    starts = {end: start for start, end in program.carries}
    found, pending = set[int](), list(values)
    while pending:
        value = pending.pop()
        if value < 0 or value in found:
            continue
        found.add(value)
        producer = program.values[value].producer
        if producer >= 0:
            pending.extend(program.ops[producer].inputs)
        pending.extend(both[value] for both in (starts, ends) if value in both)
    kinds = {value: np.dtype(program.values[value].dtype) for value in found & {*program.inputs}}
    return {value for value, kind in kinds.items() if np.issubdtype(kind, np.integer)}


def _filled(leaf: Any, place: int) -> Any:
    """An array of a leaf's shape and type, with a place in all elements, as far as it fits."""
    array = np.asarray(leaf)
    limits = np.iinfo(array.dtype)
    return np.full(array.shape, min(max(place, limits.min), limits.max), array.dtype)
