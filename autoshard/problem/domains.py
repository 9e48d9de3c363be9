"""What is decided, whatever it costs: the nodes of a problem, their choices, and the edges.

It follows from the graph of the program, from the strategies of its ops and the layouts of its
values on a mesh, and from who reads what in which phase. Prices and bytes are added by
`autoshard.problem.build`. On other chips, and at sizes of the program that divide alike, all this
is the same, and is kept (`autoshard.problem.memo`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.plan.copies import ANEW, FIRST, KEPT, SECOND, VISIBLE, crosses_passes
from autoshard.problem.folded_terms import Folded
from autoshard.problem.memo import Mask, Shared
from autoshard.problem.value_choices import Rows, ValueChoices, settled_pairs, slicing_pairs
from autoshard.program.facts import Facts
from autoshard.program.graph import is_free
from autoshard.program.layout import LayoutTable
from autoshard.program.readers import Phase
from autoshard.program.repeats import Classes
from autoshard.program.strategies import Strategies
from autoshard.program.trace import Program
from autoshard.solve.allowed import Allowed
from autoshard.solve.problem import Edge


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What domains follow from.

    Attributes:
      strategies: by op class.
      tables: the layouts of a value, by value class; those of free values are left out.
    """

    program: Program
    flow: Facts
    classes: Classes
    folded: Folded
    strategies: dict[int, Strategies]
    tables: Mapping[int, LayoutTable]

    def is_like(self, other: Subject) -> bool:
        """Whether what follows from the other one is the same; both are of the same `Shared`."""
        one, two = self.folded, other.folded
        return (
            (one is two or (one.graph == two.graph and one.sums == two.sums))
            and all(one is other.strategies[key] for key, one in self.strategies.items())
            and all(
                one.dimensions is other.tables[key].dimensions for key, one in self.tables.items()
            )
        )


@dataclass(frozen=True, slots=True, eq=False)
class Domains:
    """See the module.

    Attributes:
      subject: what they follow from.
      choices: by value class.
      value_node, op_node: number of the node of a value class or an op class. Those of values come
        first, and both in the order of the classes; an op that a value's layout decides has none.
      edges: all of them.
    """

    subject: Subject
    choices: dict[int, ValueChoices]
    value_node: dict[int, int]
    op_node: dict[int, int]
    edges: tuple[Edge, ...]

    def with_tables(self, tables: Mapping[int, LayoutTable]) -> dict[int, ValueChoices]:
        """The choices in tables of the same layouts, which other bytes belong to."""
        return {
            number: ValueChoices(tables[number], one.stored, one.copy, one.mode, one.strategy)
            for number, one in self.choices.items()
        }


def domains_of(subject: Subject, shared: Shared) -> Domains:
    """The nodes and edges of a problem; those of the last build where they are the same."""
    known = shared.domains
    if isinstance(known, Domains) and subject.is_like(known.subject):
        return known
    shared.domains = found = _Finder(subject, shared).run()
    return found


class _Finder:
    """Collects choices and edges; one instance per problem."""

    def __init__(self, subject: Subject, shared: Shared) -> None:
        self.subject = subject
        self.program, self.flow = subject.program, subject.flow
        self.classes, self.strategies = subject.classes, subject.strategies
        self.choices: dict[int, ValueChoices] = {}
        self.value_node: dict[int, int] = {}
        self.op_node: dict[int, int] = {}
        self.edges: list[Edge] = []
        self._shared = shared

    def run(self) -> Domains:
        for number, table in self.subject.tables.items():
            self.choices[number] = self._choices(number, table)
            self.value_node[number] = len(self.value_node)
        for number, members in enumerate(self.classes.op_members):
            if self._has_node(members[0]):
                self.op_node[number] = len(self.value_node) + len(self.op_node)
        self._connect()
        edges = self._shared.tie(self.edges)
        return Domains(self.subject, self.choices, self.value_node, self.op_node, edges)

    def _merged(self, value: int) -> bool:
        """Whether the op that makes `value` is decided by the value's layout."""
        producer = self.program.values[value].producer
        joined = producer in self.subject.folded.sums.joins  # then its terms may be unreduced
        if producer < 0 or joined:
            return False
        return self._shared.is_decided_by_layout(self.program.ops[producer].rule)

    def _has_node(self, op: int) -> bool:
        if is_free(self.program.ops[op], self.program.values):
            return False
        outputs = self.program.ops[op].outputs
        return len(outputs) != 1 or not self._merged(outputs[0])

    # -- choices -------------------------------------------------------------------------

    def _choices(self, number: int, table: LayoutTable) -> ValueChoices:
        members = self.classes.value_members[number]
        value = members[0]
        record = self.program.values[value]
        strategy: Rows | None = None
        stored = self._shared.every(table)
        if record.producer >= 0:
            op_number = int(self.classes.op_class[record.producer])
            position = self.program.ops[record.producer].outputs.index(value)
            rows = self._shared.rows(table, self.strategies[op_number].stored[position])
            stored = self._shared.marked(table, [rows])
            if self._merged(value):
                # The first strategy of every layout stands; there is only one.
                strategy = self._shared.first_of(table, rows)
        readable, phases = self._readable(members, table)
        apart = any(crosses_passes(self.program, self.flow.readers[one]) for one in members)
        apart = apart and not any(self.flow.is_inside(self.program, one) for one in members)
        considered = self._considered(value, table)
        a, b, mode = self._triples(considered, stored, readable, phases, apart)
        if strategy is not None:
            keep = self._reads_itself(number, members, table, strategy, a, b, mode)
            if not keep.all():
                a, b, mode = a[keep], b[keep], mode[keep]
        return ValueChoices(table, a, b, mode, strategy)

    def _reads_itself(
        self,
        number: int,
        members: Sequence[int],
        table: LayoutTable,
        strategy: Rows,
        a: Rows,
        b: Rows,
        mode: Rows,
    ) -> NDArray[np.bool_]:
        """Choices that are consistent where a copy of a block reads the same value of another."""
        keep = np.ones(len(a), dtype=bool)
        for value in members:
            for use in self.flow.readers[value]:
                outputs = self.program.ops[use.op].outputs
                if not outputs or int(self.classes.value_class[outputs[0]]) != number:
                    continue
                op_number = int(self.classes.op_class[use.op])
                rows = self._shared.rows(table, self.strategies[op_number].reads[use.position])
                seen = np.where(mode & VISIBLE[use.phase], b, a)
                keep &= (rows[strategy[a]] == a) | (rows[strategy[a]] == seen)
        return keep

    def _readable(self, members: Sequence[int], table: LayoutTable) -> tuple[Mask, set[Phase]]:
        """The layouts in which some reader of the values reads them, and the readers' phases."""
        uses = [use for value in members for use in self.flow.readers[value]]
        places = {(int(self.classes.op_class[use.op]), use.position) for use in uses}
        rows = [
            self._shared.rows(table, self.strategies[op].reads[position]) for op, position in places
        ]
        return self._shared.marked(table, rows), {use.phase for use in uses}

    def _considered(self, value: int, table: LayoutTable) -> Mask:
        """Which copies of a value are considered, by stored layout and layout of the copy."""
        record = self.program.values[value]
        once, size = self._shared.once, len(table)
        if not self.flow.can_be_copied(self.program, value):
            return once("none", (), lambda: np.zeros((size, size), dtype=bool), size)
        pairs = self._shared.pairs(table)
        if value in self.flow.parted:  # both layouts may be asked for
            pairs = once("all", (table.dimensions,), lambda: settled_pairs(table.dimensions))
        if record.producer < 0 or self.program.ops[record.producer].primitive != "enter":
            return pairs
        # A closed-over value is gathered outside of the loop, where the compiler moves it; a
        # `while` passes it on from one iteration to the next, in one layout.
        region = self.program.regions[self.program.ops[record.producer].region]
        if region.kind == "while":
            return once("none", (), lambda: np.zeros((size, size), dtype=bool), size)
        return once("slices", (pairs,), lambda: pairs & slicing_pairs(table.dimensions))

    def _triples(
        self, considered: Mask, stored: Mask, readable: Mask, phases: set[Phase], apart: bool
    ) -> tuple[Rows, Rows, Rows]:
        """Stored layout, layout of the copy and mode of every choice."""
        modes: tuple[int, ...] = ()
        if {Phase.FIRST, Phase.SECOND} <= phases:
            modes = (FIRST, SECOND, KEPT, ANEW) if apart else (FIRST, SECOND, KEPT)
        elif phases:
            modes = (SECOND,) if Phase.SECOND in phases else (FIRST,)

        def find() -> tuple[Rows, Rows, Rows]:
            own = np.flatnonzero(stored)
            a, b, mode = [own], [own], [np.zeros(len(own), dtype=np.int64)]
            first, second = np.nonzero(considered & stored[:, None] & readable[None, :])
            for kind in modes:
                a.append(first)
                b.append(second)
                mode.append(np.full(len(first), kind, dtype=np.int64))
            return np.concatenate(a), np.concatenate(b), np.concatenate(mode)

        return self._shared.once("triples", (considered, stored, readable), find, modes)

    # -- edges ---------------------------------------------------------------------------

    def _connect(self) -> None:
        done: set[tuple[int, int, int, Phase]] = set()
        program, classes = self.program, self.classes
        for value in program.values:
            if value.free:
                continue
            for use in self.flow.readers[value.index]:
                key = (
                    int(classes.value_class[value.index]),
                    int(classes.op_class[use.op]),
                    use.position,
                    use.phase,
                )
                if key not in done:
                    done.add(key)
                    self._read_edge(*key)
        for number, node in self.op_node.items():
            op = program.ops[classes.op_members[number][0]]
            for k, output in enumerate(op.outputs):
                if not program.values[output].free:
                    self._write_edge(number, node, k, int(classes.value_class[output]))
        pairs = [(program.inputs[i], program.outputs[o]) for i, o in program.ties]
        tied: set[tuple[int, int]] = set()
        for first, second in (*pairs, *program.carries):
            couple = (int(classes.value_class[first]), int(classes.value_class[second]))
            if couple[0] == couple[1] or couple in tied:
                continue
            tied.add(couple)
            u, v = (self.choices.get(c) for c in couple)
            if u is None or v is None:
                continue
            first, second = (self.value_node[c] for c in couple)
            self._edge(first, second, self._shared.identity(len(u.table)), u.stored, v.stored)

    def _read_edge(self, value: int, op: int, position: int, phase: Phase) -> None:
        choices = self.choices[value]
        if len(choices.table) == 1:
            return
        layouts = self._shared.rows(choices.table, self.strategies[op].reads[position])
        node = self.op_node.get(op)
        if node is None:
            output = self.program.ops[self.classes.op_members[op][0]].outputs[0]
            target = int(self.classes.value_class[output])
            made = self.choices[target]
            assert made.strategy is not None
            node = self.value_node[target]
            if target == value:
                return
            layouts = self._shared.through(layouts, made.strategy, made.stored)
        table, left = self._shared.seen(choices, VISIBLE[phase])
        self._edge(self.value_node[value], node, table, left, layouts)

    def _write_edge(self, op: int, node: int, position: int, value: int) -> None:
        choices = self.choices[value]
        if len(choices.table) == 1:
            return
        layouts = self._shared.rows(choices.table, self.strategies[op].stored[position])
        table = self._shared.identity(len(choices.table))
        self._edge(node, self.value_node[value], table, layouts, choices.stored)

    def _edge(
        self, u: int, v: int, table: NDArray[np.float64] | Allowed, left: Rows, right: Rows
    ) -> None:
        self.edges.append(self._shared.edge(u, v, table, left, right))
