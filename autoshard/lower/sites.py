"""Places in the user's code where a layout of a plan can be written down.

A **site** is a line on which an operation makes values, or reads values that are resharded before.
Values of one line, one outermost scope and one layout share a site: one constraint on that line
serves all layers, and all arrays that pass a function.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from autoshard.chosen import ChosenStrategies
from autoshard.copies import ANEW, BACKWARD
from autoshard.cost.flops import is_matrix_op
from autoshard.layout import dimension_axes
from autoshard.plan import Plan
from autoshard.program import Op, Program
from autoshard.targets import group_path, scope_names, shown_path

SHOWN = 4
"""So many values of a site are named."""
Key = tuple[str, int]
"""("value", number of a value) or ("copy", number of a value)."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place for one `with_sharding_constraint`, or for a few that follow each other.

    Attributes:
      what: the values, as the user knows them: the operation that makes one, or its tree path.
      block: the outermost scope, with `*` for numbers.
      line: of the user's code; for a value that is resharded, where it is read first.
      specs: one `PartitionSpec` after another, as text.
      type: of a whole value, where it is one for all.
      copy: whether the value is resharded there; it is stored otherwise.
      backward: whether that is in the backward pass.
      anew: whether the copy is made once more for the backward pass, behind an
        `optimization_barrier`.
    """

    what: str = field(compare=False)
    block: str
    line: str
    specs: tuple[str, ...]
    type: str = field(compare=False)
    copy: bool
    backward: bool
    anew: bool = False

    def __str__(self) -> str:
        call = "x"
        for spec in self.specs:
            call = f"with_sharding_constraint({call}, {spec})"
        what = f"{self.what}, {self.type}" if self.type else self.what
        notes = [what, "before it is read" if self.copy else "once made"]
        if self.backward:
            notes.append("in the backward pass")
        if self.anew:
            notes.append("and again behind an optimization_barrier for the backward pass")
        return f"{self.line or '(no line)'}: x = {call}  # {', '.join(notes)}"


@dataclass(frozen=True, slots=True)
class Place:
    """One value of a site.

    Attributes:
      key: the value, and whether it is its copy.
      site: shared by the values of all blocks.
      scopes: of the ops that make and read it, as collectives name theirs: scope and line.
      trips: how often a step comes by.
    """

    key: Key
    site: Site
    scopes: frozenset[str]
    trips: int


def places_of(program: Program, plan: Plan) -> list[Place]:
    """Every value that can be constrained, those most worth it first.

    Results of products and reads of inputs come before the rest, the forward pass before the
    backward pass, since those are what people write.
    """
    found = [*_copies(program, plan), *_results(program, plan)]
    found.sort(key=lambda one: (one[1].site.backward, one[0]))
    return [place for _, place in found]


def _copies(program: Program, plan: Plan) -> Iterator[tuple[int, Place]]:
    decisions = plan.decisions
    readers = program.consumers()
    states = {(r.shape, r.itemsize, r.before, r.after): r.states for r in plan.reshards}
    for value in program.values:
        before, after = decisions.stored[value.index], decisions.copy[value.index]
        if before is None or after is None or not value.shape:
            continue
        mode = decisions.mode[value.index]
        backward = mode == BACKWARD
        at = [program.ops[op] for op, _ in readers[value.index] if program.ops[op].line]
        line = next((op.line for op in at if op.backward == backward), "")
        way = states[value.shape, value.itemsize, before, after]
        specs = tuple(_spec([[plan.mesh.names[a] for a in axes] for axes in one]) for one in way)
        name = name_of(program, value.index)
        block = _block(at[0]) if at else ""
        site = Site(name, block, line, specs, str(value), True, backward, mode == ANEW)
        trips = max((op.trips for op in at), default=1)
        yield 0, Place(("copy", value.index), site, _scopes(at), trips)


def _results(program: Program, plan: Plan) -> Iterator[tuple[int, Place]]:
    chosen = ChosenStrategies(plan.decisions, plan.mesh.sizes)
    readers = program.consumers()
    for op in program.ops:
        if plan.decisions.assignment[op.index] is None or op.primitive == "return":
            continue
        written = chosen(op).written
        for number, value in enumerate(op.outputs):
            stored = plan.decisions.stored[value]
            record = program.values[value]
            if stored is None or not record.shape:
                continue
            ways = dict.fromkeys([tuple(written[number][0].tolist()), stored])
            axes = [dimension_axes(len(record.shape), layout) for layout in ways]
            specs = tuple(_spec([[plan.mesh.names[a] for a in d] for d in one]) for one in axes)
            name = name_of(program, value)
            site = Site(name, _block(op), op.line, specs, str(record), False, op.backward)
            rank = 1 if is_matrix_op(op.primitive) else 2
            around = [op, *(program.ops[reader] for reader, _ in readers[value])]
            yield rank + op.boundary, Place(("value", value), site, _scopes(around), op.trips)


def name_of(program: Program, value: int) -> str:
    path = shown_path(program, value)
    if path:
        shared = group_path("[0]." + path)
        return shared.removeprefix("[0].")
    op = program.ops[program.values[value].producer]
    return re.sub(r"\d+", "*", f"{op.primitive} in {'/'.join(scope_names(op.scope)) or 'the step'}")


def _spec(dimensions: Sequence[Sequence[str]]) -> str:
    entries = [repr(tuple(d)) if len(d) > 1 else repr(d[0]) if d else "None" for d in dimensions]
    while entries and entries[-1] == "None":
        entries.pop()
    return f"P({', '.join(entries)})"


def _block(op: Op) -> str:
    """The outermost scope of an op, with `*` for numbers."""
    return re.sub(r"\d+", "*", next(iter(scope_names(op.scope)), ""))


def named(site: Site, places: Sequence[Place]) -> Site:
    """The site with the names of all of its values."""
    values = [place.site for place in places if place.site == site]
    names = list(dict.fromkeys(value.what for value in values))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    types = {value.type for value in values}
    kind = types.pop() if len(types) == 1 else ""
    return replace(site, what=", ".join(names[:SHOWN]) + more, type=kind)


def _scopes(ops: Sequence[Op]) -> frozenset[str]:
    return frozenset(" ".join(part for part in (op.scope, op.line) if part) for op in ops)
