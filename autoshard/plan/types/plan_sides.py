"""What a plan says of itself, held to what its decisions mean: its specs, its types, its moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from autoshard.plan.plan import Plan
from autoshard.plan.types.plan_types import TypedMove
from autoshard.program.layout import to_partition_spec
from autoshard.program.trace import Program


def side_faults(program: Program, plan: Plan) -> Iterator[str]:
    """Where `specs` and `types` are not those of the stored inputs and outputs."""
    for side, values in (("inputs", program.inputs), ("outputs", program.outputs)):
        specs, types = plan.specs.get(side, {}), plan.types.get(side, {})
        for value in values:
            record, layout = program.values[value], plan.decisions.stored[value]
            rank = len(record.shape)
            spec = to_partition_spec(layout or (-1,) * len(plan.mesh.sizes), plan.mesh.names, rank)
            found = specs.get(record.path)
            if found != spec:
                yield f"{side} {record.path}: its spec is {found}, but it is stored as {spec}"
            if types.get(record.path) != str(record):
                yield (
                    f"{side} {record.path}: its type is {types.get(record.path)}, but the "
                    f"program's is {record}"
                )


def move_faults(plan: Plan, needed: Sequence[TypedMove]) -> Iterator[str]:
    """Where the `moves` are not the collectives that the types need."""
    lines: dict[TypedMove, str] = {}
    planned: Counter[TypedMove] = Counter()
    for move in plan.moves:
        typed = TypedMove(move.kind, move.axes, move.bytes, move.count, move.value)
        planned[typed] += 1
        lines.setdefault(typed, move.line)
    for move, count in (Counter(needed) - planned).items():
        yield f"moves lack {_times(count)}{move}"
    for move, count in (planned - Counter(needed)).items():
        yield (
            f"moves hold {_times(count)}{move} (at {lines[move] or 'no source line'}), which no "
            "type asks for"
        )


def _times(count: int) -> str:
    return "" if count == 1 else f"{count} x "
