"""Where arrays inside of a kernel may be resharded: between two layouts that are asked for.

What a kernel computes and does not write cannot be copied in another layout: reshards stand between
kernels. But where two layouts are asked for with fused operations alone in between, as in

    x = with_sharding_constraint(x, P("sequence"))
    x = with_sharding_constraint(norm(x), P(None))

the kernel must be cut in two. It may be cut behind a value that a layout is asked of, or before it:
at what its producer reads. So it is where a layout is asked of one end of a kernel, and an
operation at another end can neither read nor write its part of it:

    x = with_sharding_constraint(sin(concatenate([a, b])), P("data"))

Which ends these are depends on the mesh. So a search first looks for a plan without them
(`reshard_places`), and where there is none, for one with them all (`all_places`).
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.problem.requirements.bind import Bound
from autoshard.program.facts import Facts
from autoshard.program.layout_pattern import LayoutPattern
from autoshard.program.strategies import is_layout_determined
from autoshard.program.trace import Op, Program


def reshard_places(program: Program, flow: Facts, bounds: Sequence[Bound]) -> frozenset[int]:
    """The values that may be resharded although they, or what reads them, are inside of a kernel.

    Args:
      program, flow: whose values they are, and what is fused.
      bounds: the requirements; only their pins count.
    """
    pinned: dict[int, set[LayoutPattern]] = {}
    for bound in bounds:
        for value, pattern in bound.pins:
            pinned.setdefault(value, set()).add(pattern)
    if len({pattern for patterns in pinned.values() for pattern in patterns}) < 2:
        return frozenset()
    found: set[int] = set()
    for kernel in _kernels(program, flow):
        ends = {value for op in kernel for value in (*op.inputs, *op.outputs) if value in pinned}
        if len({pattern for value in ends for pattern in pinned[value]}) < 2:
            continue
        outputs = {value for op in kernel for value in op.outputs}
        for value in ends:
            found.add(value)
            if value in outputs:
                found.update(program.ops[program.values[value].producer].inputs)
    return frozenset(v for v in found if v >= 0 and not program.values[v].free)


def all_places(program: Program, flow: Facts, bounds: Sequence[Bound]) -> frozenset[int]:
    """Every value of a kernel that touches a value of which something is asked.

    State and the carry of a loop have one layout, so what is asked of one is asked of the other.

    Args:
      program, flow: whose values they are, and what is fused.
      bounds: the requirements.
    """
    asked = {value for bound in bounds for value in bound.values}
    ties = [(program.inputs[i], program.outputs[o]) for i, o in program.ties]
    for pair in (*ties, *program.carries):
        if not asked.isdisjoint(pair):
            asked.update(pair)
    found: set[int] = set()
    for kernel in _kernels(program, flow):
        touched = {value for op in kernel for value in (*op.inputs, *op.outputs)}
        if not asked.isdisjoint(touched):
            found |= touched
    return frozenset(v for v in found if v >= 0 and not program.values[v].free)


def _kernels(program: Program, flow: Facts) -> list[list[Op]]:
    """The ops that the layouts of their results decide, those together that are in one kernel."""
    first = list(range(len(program.ops)))

    def find(number: int) -> int:
        while first[number] != number:
            first[number] = first[first[number]]
            number = first[number]
        return number

    fusing = [not op.boundary and is_layout_determined(op.rule) for op in program.ops]
    for op in program.ops:
        for value in op.inputs if fusing[op.index] else ():
            producer = program.values[value].producer if value >= 0 else -1
            if producer < 0 or not fusing[producer] or flow.can_be_copied(program, value):
                continue
            first[find(op.index)] = find(producer)
    kernels: dict[int, list[Op]] = {}
    for op in program.ops:
        if fusing[op.index]:
            kernels.setdefault(find(op.index), []).append(op)
    return list(kernels.values())
