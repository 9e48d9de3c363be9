"""Where the seconds of compute go: ops that differ only in numbers of their scopes together."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.plan.text.moves import shared_scope
from autoshard.program.layout import Layout, format_type
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Op
from autoshard.show.profile import Profile


@dataclass(frozen=True, slots=True)
class Work:
    """Ops that are alike.

    Attributes:
      primitive, scope, line: where they stand; numbers that differ are stars.
      types: operands in the layouts in which they are read, and results as they are stored.
      times: how often they run in a step, all together.
      seconds, flops: in a step on one device; FLOP are those of the whole arrays.
    """

    primitive: str
    scope: str
    line: str
    types: str
    times: int
    seconds: float
    flops: float


def work(found: Profile) -> tuple[Work, ...]:
    """All ops that take time, the most seconds first."""
    chosen = ChosenStrategies(found.plan.decisions, found.prices.mesh_shape)
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, seconds in found.op_seconds.items():
        if seconds > 0:
            op = found.program.ops[index]
            key = (
                op.primitive,
                re.sub(r"\d+", "*", op.scope),
                op.line,
                _types(found, op, chosen(op)),
            )
            groups.setdefault(key, []).append(index)
    rows = []
    for (primitive, _, line, types), members in groups.items():
        ops = [found.program.ops[index] for index in members]
        rows.append(
            Work(
                primitive,
                shared_scope([op.scope for op in ops]),
                line,
                types,
                sum(op.trips for op in ops),
                sum(found.op_seconds[index] for index in members),
                sum(op.flops * op.trips * op.weight for op in ops),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _types(found: Profile, op: Op, strategy: Strategies) -> str:
    names = found.plan.mesh.names

    def shown(value: int, layout: Layout) -> str:
        record = found.program.values[value]
        return format_type(record.dtype, record.shape, layout, names)

    read, made = (
        ", ".join(
            shown(value, tuple(layouts[0].tolist()))
            for value, layouts in zip(values, sides, strict=True)
            if value >= 0
        )
        for values, sides in ((op.inputs, strategy.reads), (op.outputs, strategy.stored))
    )
    return f"{read} -> {made}"
