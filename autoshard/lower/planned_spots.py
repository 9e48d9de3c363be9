"""What a plan has at a spot of the user's code.

The layouts in which it stores the array that is made there, what is computed again of it and its
cotangent, or has copies of them; and those in which operations read it there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from jax.sharding import PartitionSpec

from autoshard.chosen import ChosenStrategies
from autoshard.layout import UNREDUCED, Layout, divides, to_partition_spec
from autoshard.lower.marks import Marked
from autoshard.lower.source_lines import Constraint, Spot
from autoshard.plan import Plan
from autoshard.program import Program
from autoshard.readers import STAY
from autoshard.targets import shown_path

LAYOUTS = 4
"""So many layouts are tried at a spot."""
NOTHING = Constraint(None, None)
"""Says nothing."""


def origin(program: Program, value: int) -> tuple[str, int | None]:
    """The path of an input, or of the input that a loop has its part of; the loop, or 0."""
    region = 0
    producer = program.values[value].producer
    if producer >= 0 and program.ops[producer].primitive in STAY:
        region = program.ops[producer].region
        value = program.ops[producer].inputs[0]
    if value not in program.inputs:
        return "", None
    return shown_path(program, value), region


class PlannedSpots:
    """What a plan has at the spots of the user's code."""

    def __init__(self, program: Program, plan: Plan) -> None:
        self.program, self.plan = program, plan
        self.chosen = ChosenStrategies(plan.decisions, plan.mesh.sizes)
        self.differentiated = any(op.backward for op in program.ops)

    def constraints(self, marked: Sequence[Marked], spot: Spot) -> dict[Constraint, float]:
        """What could be said at a spot, and of how many bytes; what is planned first.

        Arrays of several shapes may pass there, layers of a network of several widths, say: what
        does not fit all of them cannot be said.
        """
        shapes = {self.program.values[one.value].shape for one in marked}
        made, again, cotangents = (
            [
                (self._spec(layout), size)
                for layout, size in self._layouts(those, read=spot.read).items()
                if all(self._fits(layout, shape) for shape in shapes)
            ]
            for those in (
                [one for one in marked if not one.cotangent and not one.again],
                [one for one in marked if not one.cotangent and one.again],
                [one for one in marked if one.cotangent],
            )
        )
        made = made or again
        sizes = {None: 0.0, **dict(cotangents), **dict(again), **dict(made)}
        first, after = (next(iter(specs), (None, 0.0))[0] for specs in (made, cotangents))
        second = next(iter(again), (first, 0.0))[0]
        if not cotangents and not self.differentiated:
            after = first
        found = [Constraint(first, after, second)]
        if second != first:
            found += [Constraint(first, None, second), Constraint(first, after, None)]
            found += [Constraint(None, after, second), Constraint(None, None, second)]
        for spec in dict.fromkeys(spec for spec, _ in (*made, *again)):
            found += [Constraint(spec, spec)]
            if cotangents:
                found += [Constraint(spec, after), Constraint(spec, None)]
        for spec, _ in cotangents:
            found += [Constraint(spec, spec), Constraint(first, spec), Constraint(None, spec)]
        return {
            one: sizes[one.spec] + (one.cotangent is not None) * sizes[one.cotangent]
            for one in dict.fromkeys(found)
            if one != NOTHING
        }

    def _spec(self, layout: Layout) -> PartitionSpec:
        return to_partition_spec(layout, self.plan.mesh.names, max(layout, default=-1) + 1)

    def _fits(self, layout: Layout, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape can be cut so."""
        inside = max(layout, default=-1) < len(shape)
        return inside and divides(shape, layout, self.plan.mesh.sizes)

    def _layouts(self, marked: Sequence[Marked], *, read: bool) -> Mapping[Layout, float]:
        """The layouts that a plan gives these values, those of most bytes first."""
        found: defaultdict[Layout, float] = defaultdict(float)
        decisions = self.plan.decisions
        for one in marked:
            record = self.program.values[one.value]
            size = float(record.bytes * record.trips)
            stored, copy = decisions.stored[one.value], decisions.copy[one.value]
            if record.free:  # computed wherever it is needed in the plan, but once in user code
                stored = (-1,) * len(self.plan.mesh.names)
            if read and not one.cotangent:
                for layout in self._reads(one):
                    found[layout] += size
                continue
            if stored is not None and UNREDUCED not in stored:
                found[stored] += size
            if copy is not None:
                found[copy] += size / 2
        most = sorted(found, key=lambda layout: -found[layout])[:LAYOUTS]
        return {layout: found[layout] for layout in most}

    def _reads(self, marked: Marked) -> Iterator[Layout]:
        """The layouts in which ops read a value."""
        for number, position in marked.readers:
            op = self.program.ops[number]
            if self.plan.decisions.assignment[number] is not None:
                layout = tuple(self.chosen(op).reads[position][0].tolist())
                if UNREDUCED not in layout:
                    yield layout
