"""What Shardy makes of a step with some lines written into it, beside its plan.

The step is lowered once, with the constraints of all lines that could be written. For every set of
lines the others are taken out of the module, and Shardy's passes are run. A set **makes the plan**
where the collectives are the planned ones (kinds, axes, bytes, counts), and all matrix products are
cut as in the step that `autoshard.lower` writes. How far it is from that is its **mismatch**: the
share of the step that the collectives take which differ, and the share of products that are cut
otherwise.

Equal reshards of one value are one collective here, and those of a constant are none, as the
compiler makes them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax

from autoshard import compat
from autoshard.cost.collective import Kind, MeshTopology
from autoshard.lower.collectives import read_collectives
from autoshard.lower.compare import Tally, compare
from autoshard.lower.facts.loop_trips import loop_trips
from autoshard.lower.inlined import run_inlined
from autoshard.lower.merged import drop_constants, merge_equal, walk_in
from autoshard.lower.spmd import Lowered
from autoshard.machine.machine import Machine
from autoshard.program.as_run.planned import as_planned
from autoshard.study.annotate.lines import Line
from autoshard.study.annotate.marks import mark_of
from autoshard.study.annotate.sites import Sites, written

_PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
_CONSTRAINT = "sdy.sharding_constraint"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What is made otherwise than planned.

    Attributes:
      tallies: collectives that are missing, or were not planned.
      products: how many matrix products are cut otherwise.
      share: what these collectives take of the planned step, and these products of all.
      arrays: elements of the results that are laid out otherwise, of all operations.
      lines: of the user's code, `file.py:12`, about the products that are cut otherwise.
    """

    tallies: tuple[Tally, ...]
    products: int
    share: float
    arrays: float
    lines: frozenset[str] = frozenset()

    @property
    def none(self) -> bool:
        """Whether all is as planned."""
        return not self.tallies and not self.products


class LineChecks:
    """Runs Shardy's passes on a step with some lines written into it."""

    def __init__(
        self, lowered: Lowered, sites: Sites, fn: Callable[..., Any], machine: Machine
    ) -> None:
        self.lowered, self.sites, self.fn = lowered, sites, fn
        self.topology = MeshTopology(machine, lowered.plan.mesh.sizes)
        reference = _explicit(lowered)
        self.products = _cuts(reference)
        self.arrays = _arrays(reference)
        self.module = _module(inlined(lowered, sites.marked(fn, lowered.mesh)))
        self.marks = [
            mark_of(compat.location_frames(one.location)[0])
            for one in _constraints(self.module.operation)
        ]
        self.operations = sum(1 for _ in walk_in(self.module.operation))
        self.checks = 0
        self.alone: dict[tuple[Line, ...], Mismatch] = {}

    def mismatch(self, lines: Collection[Line]) -> Mismatch:
        """Of a set of lines, by the module that holds them all."""
        self.checks += 1
        kept = self.sites.marks_of(tuple(lines))
        copy = self.module.operation.clone()
        for operation, mark in zip(_constraints(copy), self.marks, strict=True):
            if mark is not None and mark not in kept:
                operation.results[0].replace_all_uses_with(operation.operands[0])
                operation.erase()
        compat.make_collectives_explicit(copy)
        return self._judged(copy)

    def truth(self, lines: Sequence[Line]) -> Mismatch:
        """Of a set of lines, by the step that is traced with these alone."""
        key = tuple(lines)
        if key not in self.alone:
            self.checks += 1
            self.alone[key] = self._judged(_explicit(self.written(lines)))
        return self.alone[key]

    def written(self, lines: Sequence[Line]) -> Lowered:
        """The step with these lines in the user's own function."""
        return inlined(self.lowered, written(self.fn, lines, self.lowered.mesh))

    def _judged(self, explicit: Any) -> Mismatch:
        merge_equal(explicit)
        drop_constants(explicit)
        loops = loop_trips(self.lowered.program)
        found = compare(self.lowered.plan.moves, read_collectives(explicit, loops=loops))
        cuts, lines = _cuts(explicit), set[str]()
        if len(cuts) == len(self.products):
            odd = [a for a, b in zip(cuts, self.products, strict=True) if a.cut != b.cut]
            wrong = len(odd)
            lines.update(line for one in odd for line in one.lines)
        else:
            wrong = _difference(*(Counter(one.cut for one in of) for of in (cuts, self.products)))
        arrays = _difference(_arrays(explicit), self.arrays)
        tallies = (*found.missing, *found.unplanned)
        share = sum(map(self._seconds, tallies)) / self.lowered.plan.estimate.step_seconds
        share += wrong / max(len(self.products), 1)
        return Mismatch(tallies, int(wrong), share, arrays, frozenset(lines))

    def _seconds(self, tally: Tally) -> float:
        """Of the collectives that are missing or too many."""
        names = self.lowered.plan.mesh.names
        axes = [names.index(axis.partition(":")[0].strip('"')) for axis in tally.axes]
        each = self.topology.collective_seconds(cast("Kind", tally.kind), axes, float(tally.bytes))
        return abs(tally.planned - tally.found) * each


def inlined(lowered: Lowered, fn: Callable[..., Any]) -> Lowered:
    """The step `fn` with the shardings of inputs and results of `lowered`, its calls inlined."""
    program = lowered.program

    def step(*arguments: Any) -> Any:
        with compat.traced_without_gpu():
            closed = as_planned(compat.in_lax(jax.jit(fn).trace(*arguments).jaxpr))
        results = run_inlined(closed, jax.tree.leaves(arguments))
        return jax.tree.unflatten(program.out_tree, results)

    step.__name__ = program.name
    return replace(lowered, fn=step, readable=None)


def _difference(one: Counter[Any], other: Counter[Any]) -> float:
    return sum(abs(one[key] - other[key]) for key in one.keys() | other.keys())


# -- modules ---------------------------------------------------------------------------------------


def _module(lowered: Lowered) -> Any:
    return lowered.to_read().compiler_ir("stablehlo")


def _explicit(lowered: Lowered) -> Any:
    """The step as Shardy makes it, every collective an operation."""
    return compat.with_explicit_collectives(_module(lowered))


def _constraints(operation: Any) -> list[Any]:
    return [inner for inner in walk_in(operation) if inner.name == _CONSTRAINT]


class _Cuts:
    """How results are cut; every sharding is read once."""

    def __init__(self) -> None:
        self.known: dict[Any, tuple[Any, ...]] = {}

    def __call__(self, value: Any) -> tuple[Any, ...]:
        sharding = compat.shardy_sharding_of(value)
        if sharding not in self.known:
            dimensions = () if sharding is None else compat.shardy_layout(sharding)[1]
            self.known[sharding] = dimensions if any(dimensions) else ()
        return self.known[sharding]


@dataclass(frozen=True, slots=True)
class _Product:
    """How a product is cut, and where it stands in the user's code."""

    cut: str
    location: Any

    @property
    def lines(self) -> list[str]:
        """The lines of the user's code on the way to it, `file.py:12`."""
        _, frames = compat.location_frames(self.location)
        return [f"{os.path.basename(file)}:{line}" for file, line in frames]


def _cuts(explicit: Any) -> list[_Product]:
    """How every product of a module is cut, in program order."""
    cut = _Cuts()
    return [
        _Product(f"{inner.results[0].type} {cut(inner.results[0])}", inner.location)
        for inner in walk_in(explicit)
        if inner.name in _PRODUCTS
    ]


def _arrays(explicit: Any) -> Counter[Any]:
    """For every kind of operation, type and layout the elements of the results."""
    cut = _Cuts()
    found: Counter[Any] = Counter()
    for inner in walk_in(explicit):
        if inner.name.startswith("stablehlo.") and len(inner.results) == 1:
            kind = inner.results[0].type
            found[inner.name, str(kind), cut(inner.results[0])] += compat.elements(kind)
    return found
