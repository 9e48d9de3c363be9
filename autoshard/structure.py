"""Whether two programs have the same decisions on a mesh: nodes and edges of a problem alike.

So it is, as a rule, for one program at two sizes (where what divides is the same) and on two
machines: costs and bytes differ, and what goes with what does not.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from autoshard.dataflow import Dataflow
from autoshard.layout import LayoutTable
from autoshard.program import Program
from autoshard.repeats import Classes
from autoshard.strategy import Strategies


def same_wiring(one: Program, other: Program) -> bool:
    """Whether ops read and make the same values, in regions of the same kinds."""
    if one is other:
        return True
    same = (one.inputs, one.outputs, one.ties, one.carries) == (
        other.inputs,
        other.outputs,
        other.ties,
        other.carries,
    )
    return (
        same
        and len(one.ops) == len(other.ops)
        and len(one.values) == len(other.values)
        and [region.kind for region in one.regions] == [region.kind for region in other.regions]
        and all(
            (a.primitive, a.inputs, a.outputs, a.region, a.backward)
            == (b.primitive, b.inputs, b.outputs, b.region, b.backward)
            and (a.rule.operands, a.rule.results) == (b.rule.operands, b.rule.results)
            for a, b in zip(one.ops, other.ops, strict=True)
        )
        and all(
            (a.producer, a.free, a.path) == (b.producer, b.free, b.path)
            for a, b in zip(one.values, other.values, strict=True)
        )
    )


def same_classes(one: Classes, other: Classes) -> bool:
    """Whether the same ops and values share decisions."""
    return np.array_equal(one.op_class, other.op_class) and np.array_equal(
        one.value_class, other.value_class
    )


def same_uses(program: Program, one: Dataflow, other: Dataflow) -> bool:
    """Whether values are read by the same ops in the same passes, and may have the same copies."""
    if one is other:
        return True
    return all(
        one.can_be_copied(program, value) == other.can_be_copied(program, value)
        and [(use.op, use.position, use.phase) for use in one.readers[value]]
        == [(use.op, use.position, use.phase) for use in other.readers[value]]
        for value in range(len(program.values))
    )


def same_strategies(one: Mapping[int, Strategies], other: Mapping[int, Strategies]) -> bool:
    """Whether op classes have the same strategies."""
    pairs = {(id(a), id(other[number])): (a, other[number]) for number, a in one.items()}
    return all(
        a is b
        or (
            np.array_equal(a.assignment, b.assignment)
            and all(map(np.array_equal, a.reads, b.reads))
            and all(map(np.array_equal, a.stored, b.stored))
        )
        for a, b in pairs.values()
    )


def same_layouts(one: Mapping[int, LayoutTable], other: Mapping[int, LayoutTable]) -> bool:
    """Whether value classes have the same layouts."""
    pairs = {(id(a), id(other[number])): (a, other[number]) for number, a in one.items()}
    return all(a is b or a.layouts == b.layouts for a, b in pairs.values())
