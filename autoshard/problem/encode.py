"""Between the choices of a built problem and the decisions on the whole program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from autoshard.plan.decisions import Decisions
from autoshard.problem.requirements.hub_nodes import completed
from autoshard.program.layout import Layout

if TYPE_CHECKING:
    from autoshard.problem.build import Built


def decode(built: Built, choices: Sequence[int]) -> Decisions:
    program, classes = built.prices.program, built.classes
    stored: list[Layout | None] = [None] * len(program.values)
    copy: list[Layout | None] = [None] * len(program.values)
    mode = [0] * len(program.values)
    assignment: list[tuple[int, ...] | None] = [None] * len(program.ops)
    for number, node in built.value_node.items():
        record, choice = built.value_choices[number], choices[node]
        a, b = int(record.stored[choice]), int(record.copy[choice])
        for value in classes.value_members[number]:
            stored[value] = record.table.layouts[a]
            copy[value] = record.table.layouts[b] if b != a else None
            mode[value] = int(record.mode[choice])
        if record.strategy is not None:
            producer = program.values[classes.value_members[number][0]].producer
            op_number = int(classes.op_class[producer])
            row = built.op_strategies[op_number].assignment[record.strategy[a]]
            for op in classes.op_members[op_number]:
                assignment[op] = tuple(row.tolist())
    for number, node in built.op_node.items():
        row = built.op_strategies[number].assignment[choices[node]]
        for op in classes.op_members[number]:
            assignment[op] = tuple(row.tolist())
    return Decisions(tuple(stored), tuple(copy), tuple(mode), tuple(assignment))


def encode(built: Built, decisions: Decisions) -> list[int] | None:
    program, classes = built.prices.program, built.classes
    result = [-1] * len(built.problem.nodes)
    for number, node in built.value_node.items():
        value = classes.value_members[number][0]
        record = built.value_choices[number]
        a = decisions.stored[value]
        b = decisions.copy[value]
        if (
            a is None
            or a not in record.table.rows
            or (b is not None and b not in record.table.rows)
        ):
            return None
        row = record.table.rows[a]
        target = row if b is None else record.table.rows[b]
        match = (record.stored == row) & (record.copy == target)
        if b is not None:
            match &= record.mode == decisions.mode[value]
        found = np.flatnonzero(match)
        if not len(found):
            return None
        result[node] = int(found[0])
    for number, node in built.op_node.items():
        op = program.ops[classes.op_members[number][0]]
        strategies = built.op_strategies[number]
        wanted = decisions.assignment[op.index]
        match = (strategies.assignment == np.array(wanted)).all(axis=1)
        for k, output in enumerate(op.outputs):
            layout = decisions.stored[output]
            if layout is not None:
                match &= (strategies.stored[k] == np.array(layout)).all(axis=1)
        found = np.flatnonzero(match)
        if not len(found):
            return None
        result[node] = int(found[0])
    return completed(built.problem, built.hubs, result)
