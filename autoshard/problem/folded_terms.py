"""What the members of a class come to together, whatever the mesh: times, copies and lives.

Repeated blocks share their decisions (`autoshard.program.repeats`), and what a choice costs is the
sum over all of them. How often each part of that sum counts follows from the program, its data flow
and the machine; a search finds it once for all mesh shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.cost.cut_kernels import cut_bytes
from autoshard.cost.step_prices import StepPrices
from autoshard.plan.copies import ANEW, FIRST, KEPT, SECOND, copy_intervals, value_trips
from autoshard.plan.unreduced_sums import NO_SUMS, Sums, find_sums
from autoshard.program.facts import Facts
from autoshard.program.readers import Phase
from autoshard.program.repeats import Classes
from autoshard.program.trace import Op, Program


@dataclass(frozen=True, slots=True)
class Term:
    """Members of an op class that cost the same: one of them, and how often they run in all.

    `exposed` is the fraction that is waited for of what settles their results.
    """

    op: Op
    exposed: float
    times: float


@dataclass(frozen=True, slots=True)
class CopyTerm:
    """Members of a value class whose copies cost the same: one of them, and how often in all.

    `times` says by mode of a copy how often it is waited for; `cuts`, how often a kernel is cut in
    two for it, see `autoshard.cost.cut_kernels`.
    """

    value: int
    times: tuple[float, ...]
    cuts: float = 0.0


@dataclass(frozen=True, slots=True)
class Life:
    """When a value and its copies are in memory: intervals of program points.

    Attributes:
      value: its index.
      span: of its own buffer; empty where it has none.
      copies: the modes in which a copy lives over an interval, and the interval.
    """

    value: int
    span: tuple[int, int]
    copies: tuple[tuple[frozenset[int], tuple[int, int]], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """See the module.

    Attributes:
      graph: what the choices follow from, whatever the sizes: who makes and reads what, when, and
        what is decided together. Equal for programs that differ in sizes alone.
      sums: which values may stay unreduced.
      terms: by op class.
      copy_terms: by value class, what its copies come to.
      lives: by value class, of every member.
    """

    graph: object
    sums: Sums
    terms: tuple[tuple[Term, ...], ...]
    copy_terms: tuple[tuple[CopyTerm, ...], ...]
    lives: tuple[tuple[Life, ...], ...]


def fold(prices: StepPrices, classes: Classes, *, join_sums: bool = True) -> Folded:
    """What the classes of a program come to; `prices` are those of any mesh of the machine.

    Free values are in no memory and are not copied; their classes have neither.
    """
    program, flow = prices.program, prices.dataflow
    free = [program.values[members[0]].free for members in classes.value_members]
    return Folded(
        _graph(program, flow, classes),
        find_sums(program, flow.readers, classes) if join_sums else NO_SUMS,
        tuple(_terms(prices, members) for members in classes.op_members),
        tuple(
            () if none else _copy_terms(prices, members)
            for members, none in zip(classes.value_members, free, strict=True)
        ),
        tuple(
            () if none else tuple(_life(prices, value) for value in members)
            for members, none in zip(classes.value_members, free, strict=True)
        ),
    )


def _graph(program: Program, flow: Facts, classes: Classes) -> object:
    return (
        [(op.primitive, op.inputs, op.outputs, op.backward, op.region) for op in program.ops],
        [(value.producer, value.free) for value in program.values],
        [region.kind for region in program.regions],
        (program.inputs, program.outputs, program.ties, program.carries),
        (classes.op_members, classes.value_members),
        [[(use.op, use.position, use.phase) for use in uses] for uses in flow.readers],
        [flow.can_be_copied(program, value.index) for value in program.values],
        flow.parted,
    )


def _terms(prices: StepPrices, members: Sequence[int]) -> tuple[Term, ...]:
    # Copies of a block are alike, but for the first and the last: what surrounds them decides
    # what is fused and what is waited for.
    flow, corrections = prices.dataflow, prices.corrections
    groups: dict[object, tuple[Op, float, float]] = {}
    for member in members:
        op = prices.program.ops[member]
        exposed = prices.exposed_of_sums(op)
        key = exposed, flow.surroundings(op), corrections.factor(op)
        _, _, times = groups.get(key, (op, exposed, 0.0))
        groups[key] = (op, exposed, times + op.trips * op.weight)
    return tuple(Term(*group) for group in groups.values())


def _copy_terms(prices: StepPrices, members: Sequence[int]) -> tuple[CopyTerm, ...]:
    flow = prices.dataflow
    groups: dict[object, tuple[int, list[float], list[float]]] = {}
    for value in members:
        key = flow.sending(value), cut_bytes(prices, value)
        _, times, cuts = groups.setdefault(key, (value, [0.0] * (ANEW + 1), []))
        if flow.is_inside(prices.program, value):
            cuts.append(value_trips(prices.program, value))
        exposed = prices.exposed_of_copies(value)
        phases = {use.phase for use in flow.readers[value]}
        first, second = Phase.FIRST in phases, Phase.SECOND in phases
        once = exposed * value_trips(prices.program, value)
        times[FIRST] += once * first
        times[SECOND] += once * second
        times[KEPT] += once * (first or second)
        times[ANEW] += once * (first + second)
    return tuple(CopyTerm(value, tuple(times), sum(cuts)) for value, times, cuts in groups.values())


def _life(prices: StepPrices, value: int) -> Life:
    flow = prices.dataflow
    copies = copy_intervals(flow.readers[value])
    return Life(value, (flow.start[value], flow.stop[value]), tuple(copies))
