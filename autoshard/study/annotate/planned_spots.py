"""What a plan has at a spot of the user's code.

The layouts in which it stores the array that is made there, what is computed again of it and its
cotangent, or has copies of them; and those in which operations read it there.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from jax.sharding import PartitionSpec

from autoshard.plan.plan import Plan
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.layout import UNREDUCED, Layout, to_partition_spec
from autoshard.program.select import shown_path
from autoshard.program.trace import Program
from autoshard.program.vocabulary import STAY
from autoshard.study.annotate.marks import Marked
from autoshard.study.annotate.source_lines import Constraint, Said, Spot

LAYOUTS = 4
"""So many layouts are tried at a spot."""
Turns = tuple[PartitionSpec, ...]
"""Layouts that an array has in turn."""
_T = TypeVar("_T")
NOTHING = Constraint(None, None)
"""Says nothing."""


def names_of(entry: str | Sequence[str] | None) -> tuple[str, ...]:
    """The axes of a dimension of a `PartitionSpec`, major first."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _spec(state: Sequence[Sequence[str]]) -> PartitionSpec:
    """With every dimension sharded by its axes, those behind the last one left out."""
    entries = [tuple(axes) if len(axes) > 1 else axes[0] if axes else None for axes in state]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


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


def _cuts(layout: Layout) -> tuple[int, Layout]:
    """Of several layouts those that are cut by fewer axes come first."""
    return sum(dimension >= 0 for dimension in layout), layout


def _unmapped(marked: Marked, dimensions: Iterable[_T]) -> tuple[_T, ...]:
    """What is said by dimension, of those alone that the user's code sees."""
    return tuple(one for k, one in enumerate(dimensions) if k not in marked.mapped)


def _seen(marked: Marked, turns: Turns) -> Turns:
    """Layouts in turn as the user's code can write them."""
    if not marked.mapped:
        return turns
    entries = (_unmapped(marked, spec) for spec in turns)
    return tuple(
        _spec([names_of(entry) for entry in spec]) for spec, _ in itertools.groupby(entries)
    )


class PlannedSpots:
    """What a plan has at the spots of the user's code."""

    def __init__(self, program: Program, plan: Plan) -> None:
        self.program, self.plan = program, plan
        self.chosen = ChosenStrategies(plan.decisions, plan.mesh.sizes)
        self.differentiated = any(op.backward for op in program.ops)
        self.uses = Counter(value for op in program.ops for value in op.inputs)

    def constraints(self, marked: Sequence[Marked], spot: Spot) -> dict[Constraint, float]:
        """What could be said at a spot, and of how many bytes; what is planned first.

        Arrays of several shapes may pass there, layers of a network of several widths, say: what
        does not fit all of them cannot be said.
        """
        values = [one for one in marked if not one.gradient and not one.given]
        made, again, cotangents, gradient, given = (
            self._said(those, read=spot.read)
            for those in (
                [one for one in values if not one.cotangent and not one.again],
                [one for one in values if not one.cotangent and one.again],
                [one for one in values if one.cotangent],
                [one for one in marked if one.gradient],
                [one for one in marked if one.given],
            )
        )
        made = made or again
        sizes = {**dict(cotangents), **dict(again), **dict(made), None: 0.0}
        first, after = (next(iter(specs), (None, 0.0))[0] for specs in (made, cotangents))
        second = next(iter(again), (first, 0.0))[0]
        if not cotangents and not self.differentiated:
            after = first
        found = [Constraint(first, after, second)]
        third, fourth = (next(iter(specs), (None, 0.0))[0] for specs in (gradient, given))
        if third != second or fourth is not None:
            found.insert(0, Constraint(first, after, second, third, fourth))
        if second != first:
            found += [Constraint(first, None, second), Constraint(first, after, None)]
            found += [Constraint(None, after, second), Constraint(None, None, second)]
        for spec in dict.fromkeys(spec for spec, _ in (*made, *again)):
            found += [Constraint(spec, spec[::-1] if isinstance(spec, tuple) else spec)]
            if cotangents:
                found += [Constraint(spec, after), Constraint(spec, None)]
        for spec, _ in cotangents:
            if not isinstance(spec, tuple):
                found += [Constraint(spec, spec)]
            found += [Constraint(first, spec), Constraint(None, spec)]
        return {
            one: sizes[one.spec] + sizes.get(one.cotangent, 0.0)
            for one in dict.fromkeys(found)
            if one != NOTHING
        }

    def _said(self, marked: Sequence[Marked], *, read: bool) -> list[tuple[Said, float]]:
        """What fits all of these values, with the bytes, that of most bytes first."""
        shapes = {_unmapped(one, self.program.values[one.value].shape) for one in marked}
        taken = frozenset[str]().union(*(one.taken for one in marked))
        return [
            (turns[0] if len(turns) == 1 else turns, size)
            for turns, size in self._turns(marked, read=read).items()
            if all(self._fits(spec, shape, taken) for spec in turns for shape in shapes)
        ]

    def _fits(self, spec: PartitionSpec, shape: tuple[int, ...], taken: Collection[str]) -> bool:
        """Whether an array of this shape can be cut so, without the axes that are taken."""
        sizes = dict(zip(self.plan.mesh.names, self.plan.mesh.sizes, strict=True))
        cut = [names_of(entry) for entry in spec]
        counts = [math.prod(sizes[name] for name in names) for names in cut]
        fits = len(counts) <= len(shape) and not any(map(operator.mod, shape, counts))
        return fits and not any(name in taken for names in cut for name in names)

    def _turns(self, marked: Sequence[Marked], *, read: bool) -> Mapping[Turns, float]:
        """The layouts in turn that a plan gives these values, those of most bytes first."""
        found: defaultdict[Turns, float] = defaultdict(float)
        for one in marked:
            record = self.program.values[one.value]
            size = float(record.bytes * record.trips)
            stored, copy = self._stored(one.value), self.plan.decisions.copy[one.value]
            if read and not one.cotangent:
                kept = set(self._reads(one, kept=True))
                for layout in sorted(set(self._reads(one)), key=_cuts):  # others are its slices
                    if not one.given or layout != stored:
                        turns = _seen(one, self._way(one.value, stored, layout)[1:])
                        found[turns] += 2 * size if layout in kept else size
                continue
            if stored is not None and UNREDUCED not in stored:
                found[_seen(one, self._all(one, stored))] += 2 * size
                found[_seen(one, self._specs(stored))] += size
            if copy is not None:
                found[_seen(one, self._specs(copy))] += size / 2
        most = sorted(found, key=lambda turns: -found[turns])[:LAYOUTS]
        return {turns: found[turns] for turns in most}

    def _stored(self, value: int) -> Layout | None:
        """How a value is kept; one that is computed wherever it is needed, once in user code."""
        free = self.program.values[value].free
        whole = (-1,) * len(self.plan.mesh.names)
        return whole if free else self.plan.decisions.stored[value]

    def _all(self, marked: Marked, stored: Layout) -> Turns:
        """The layouts that a value has in turn: as it is made, as it is kept, as it is read.

        What reads a cotangent there is one op; other arrays have a line where each op reads them.
        """
        turns = [*self._specs(*self._writes(marked), stored)] if marked.made else []
        reads = set(self._reads(marked)) if marked.cotangent and marked.read else set()
        if len(reads) == 1:
            turns += self._way(marked.value, stored, *reads)[1 if turns else 0 :]
        return tuple(one for one, _ in itertools.groupby(turns)) or self._specs(stored)

    def _way(self, value: int, stored: Layout | None, layout: Layout) -> Turns:
        """The layouts through which a value is read in another one than it is kept in."""
        record, names = self.program.values[value], self.plan.mesh.names
        for one in self.plan.reshards:
            key = one.shape, one.itemsize, one.before, one.after
            if key == (record.shape, record.itemsize, stored, layout):
                states = [
                    [[names[axis] for axis in axes] for axes in state] for state in one.states
                ]
                return *self._specs(one.before), *map(_spec, states)
        return self._specs(layout, layout)

    def _specs(self, *layouts: Layout) -> Turns:
        names = self.plan.mesh.names
        return tuple(
            to_partition_spec(layout, names, max(layout, default=-1) + 1) for layout in layouts
        )

    def _writes(self, marked: Marked) -> Iterator[Layout]:
        """The layout in which an op writes a value, where it is whole there.

        Before it, of a cotangent that is a product transposed, that of the product: it has no place
        of its own in the user's code.
        """
        producer = self.program.values[marked.value].producer
        if producer < 0 or self.plan.decisions.assignment[producer] is None:
            return
        op = self.program.ops[producer]
        if marked.cotangent and op.primitive == "transpose" and self._is_product(op.inputs[0]):
            layout = self.plan.decisions.stored[op.inputs[0]]
            place = [op.rule.results[0].index(factors) for factors in op.rule.operands[0]]
            if layout is not None and UNREDUCED not in layout:
                yield tuple(place[d] if d >= 0 else d for d in layout)
        layout = tuple(self.chosen(op).written[op.outputs.index(marked.value)][0].tolist())
        if UNREDUCED not in layout:
            yield layout

    def _is_product(self, value: int) -> bool:
        """Whether a matrix product made it, for one op."""
        producer = self.program.values[value].producer
        made = producer >= 0 and self.program.ops[producer].primitive == "dot_general"
        return made and self.uses[value] == 1

    def _reads(self, marked: Marked, *, kept: bool = False) -> Iterator[Layout]:
        """The layouts in which ops read a value; or only those that keep it for another loop."""
        for number, position in marked.readers:
            op = self.program.ops[number]
            if kept and op.primitive != "scan_stack":
                continue
            if self.plan.decisions.assignment[number] is not None:
                layout = tuple(self.chosen(op).reads[position][0].tolist())
                if UNREDUCED not in layout:
                    yield layout
