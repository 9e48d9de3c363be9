"""The fewest annotations with which Shardy's own propagation makes the plan.

`autoshard.lower` constrains every value. With the shardings of the inputs and results given, most
of that follows by propagation, and few `with_sharding_constraint`s remain to be written by hand, at
some of the sites (`autoshard.lower.sites`).

A set of sites is held to the plan by lowering the step with these constraints alone and running
Shardy's passes: it must make the planned collectives (kinds, axes, bytes, counts), and cut all
matrix products as the fully annotated step does. What it makes otherwise is its **mismatch**.

Sites are added one by one: of those about the places where something is otherwise than planned,
the one that leaves the least mismatch. Where none helps, what is lacking is found in halves
(QuickXplain, see `autoshard.conflicts`). At the end, what can be left out is: of the sites that
remain none can be left out, although another set might be smaller still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from autoshard import compat
from autoshard.assemble import priced_anew, prices_of
from autoshard.conflicts import minimal_conflict
from autoshard.dataflow import analyse
from autoshard.lower.collectives import read_collectives
from autoshard.lower.compare import Tally, compare
from autoshard.lower.interpret import Interpreter, LoweringError
from autoshard.lower.sites import Key, Place, Site, named, places_of
from autoshard.lower.spmd import Lowered
from autoshard.machine import Machine, load
from autoshard.plan import Plan
from autoshard.program import Op, Program
from autoshard.readers import Reader
from autoshard.sums import settled

Readers = tuple[tuple[Reader, ...], ...]
_PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
BREADTH = (8, 32)
"""So many sites are tried at a time; more where none of those helps."""


@dataclass(frozen=True, slots=True, eq=False)
class Fewest:
    """What `fewest` found.

    Attributes:
      sites: of which none can be left out.
      lowered: the step with these constraints alone; it makes the planned collectives.
      of: how many sites there are in all.
      per_block: how many of the sites are in repeated blocks, once for all of those.
      checks: how often Shardy's passes were run.
    """

    sites: tuple[Site, ...]
    lowered: Lowered
    of: int
    per_block: int = 0
    checks: int = 0

    def __str__(self) -> str:
        if not self.sites:
            return "the shardings of inputs and results are enough"
        inside = f" ({self.per_block} in repeated blocks)" if self.per_block else ""
        heading = (
            f"{len(self.sites)} of {self.of} places{inside}, beside the shardings of inputs and "
            "results:"
        )
        return "\n".join([heading, *(f"  {site}" for site in self.sites)])


def fewest(
    lowered: Lowered,
    *,
    machine: Machine | None = None,
    heard: Callable[[int, bool], None] | None = None,
) -> Fewest:
    """Find the annotations of a plan that cannot be left out.

    Args:
      lowered: from `autoshard.lower`.
      machine: of the plan; None: of the name in the plan.
      heard: called after every check with the number of sites and whether they sufficed.

    Terms of a sum that the plan leaves unreduced are settled one by one here.

    Raises:
      MachineError: the plan leaves values unreduced, and its machine is not found.
      LoweringError: even all sites together do not make the plan; use `autoshard.lower`.
    """
    plan = _settled(lowered.program, lowered.plan, machine)
    if plan is not lowered.plan:
        lowered = _written(replace(lowered, plan=plan), Interpreter)
    checker = _Checker(lowered, places_of(lowered.program, lowered.plan), heard)
    everything = frozenset(range(len(checker.sites)))
    if not checker.suffices(everything):
        raise LoweringError(
            f"the plan of {lowered.program.name} is not made by constraints on values alone; use "
            "autoshard.lower"
        )
    chosen = _grown(checker)
    if not checker.suffices(chosen):
        rest = [number for number in everything if number not in chosen]
        grown = chosen
        lacking = minimal_conflict(rest, lambda some: not checker.suffices(grown.union(some)))
        chosen = grown.union(lacking)
    return checker.result(_without_any(sorted(chosen), checker.suffices))


def _settled(program: Program, plan: Plan, machine: Machine | None) -> Plan:
    """The plan without unreduced values, which no constraint can say."""
    decisions = settled(program, plan.decisions)
    if decisions == plan.decisions:
        return plan
    machine = machine or load(plan.machine)
    prices = prices_of(plan, program, machine)
    return priced_anew(replace(plan, decisions=decisions), prices)


def _grown(checker: _Checker) -> frozenset[int]:
    """Sites that make the plan, or all that help by themselves."""
    chosen: frozenset[int] = frozenset()
    left = checker.mismatch(chosen)
    while left.wrong:
        about = checker.about(left, chosen)
        tried = 0
        better = None
        for breadth in BREADTH:
            options = [chosen | {number} for number in about[tried:breadth]]
            tried = breadth
            better = min(options, key=lambda some: checker.mismatch(some).size, default=None)
            if better is not None and checker.mismatch(better).size < left.size:
                break
        if better is None or checker.mismatch(better).size >= left.size:
            return chosen
        chosen, left = better, checker.mismatch(better)
    return chosen


def _without_any(chosen: list[int], suffices: Callable[[frozenset[int]], bool]) -> list[int]:
    """Leave out what can be left out, one by one, until nothing can.

    Propagation is not monotone: with fewer constraints one that was needed may be needless.
    """
    while True:
        for number in reversed(chosen):
            rest = [other for other in chosen if other != number]
            if suffices(frozenset(rest)):
                chosen = rest
                break
        else:
            return chosen


# -- checks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """Collectives made otherwise than planned, and how many products are cut otherwise."""

    tallies: tuple[Tally, ...]
    products: int

    @property
    def wrong(self) -> int:
        return len(self.tallies) + self.products

    @property
    def size(self) -> tuple[int, float]:
        amount = sum(abs(one.planned - one.found) * float(one.bytes) for one in self.tallies)
        return self.wrong, amount


class _Checker:
    """Runs Shardy's passes on the step with some sites annotated; remembers what they made."""

    def __init__(
        self, lowered: Lowered, places: list[Place], heard: Callable[[int, bool], None] | None
    ) -> None:
        self.lowered, self.places, self.heard = lowered, places, heard
        self.sites = list(dict.fromkeys(place.site for place in places))
        self.known: dict[frozenset[int], _Mismatch] = {}
        self.readers = analyse(lowered.program).readers

    @cached_property
    def products(self) -> list[str]:
        """How all products are to be cut, in program order."""
        return _cuts(_explicit(self.lowered))

    def mismatch(self, chosen: frozenset[int]) -> _Mismatch:
        if chosen not in self.known:
            explicit = _explicit(self.annotated(chosen))
            found = compare(self.lowered.plan.moves, read_collectives(explicit))
            wrong = sum(a != b for a, b in zip(_cuts(explicit), self.products, strict=True))
            self.known[chosen] = _Mismatch((*found.missing, *found.unplanned), wrong)
            if self.heard is not None:
                self.heard(len(chosen), not self.known[chosen].wrong)
        return self.known[chosen]

    def suffices(self, chosen: frozenset[int]) -> bool:
        return not self.mismatch(chosen).wrong

    def about(self, left: _Mismatch, chosen: frozenset[int]) -> list[int]:
        """The sites not yet chosen, those about most of what is otherwise than planned first."""
        missing = [frozenset(one.planned_at) for one in left.tallies if one.planned > one.found]
        odd = {where.rpartition(" ")[2] for one in left.tallies for where in one.found_at}
        hits: Counter[Site] = Counter()
        for place in self.places:
            here = sum(bool(place.scopes & scopes) for scopes in missing)
            near = any(scope.rpartition(" ")[2] in odd for scope in place.scopes)
            hits[place.site] = max(hits[place.site], 2 * here + near)
        order = [number for number in range(len(self.sites)) if number not in chosen]
        return sorted(order, key=lambda number: -hits[self.sites[number]])

    def annotated(self, chosen: frozenset[int]) -> Lowered:
        some = {self.sites[number] for number in chosen}
        keys = frozenset(place.key for place in self.places if place.site in some)
        return _sparse(self.lowered, self.readers, keys)

    def result(self, chosen: Sequence[int]) -> Fewest:
        kept = tuple(named(self.sites[number], self.places) for number in sorted(chosen))
        looped = {place.site for place in self.places if place.trips > 1}
        blocks = sum(site in looped or "*" in site.block for site in kept)
        lowered = self.annotated(frozenset(chosen))
        return Fewest(kept, lowered, len(self.sites), blocks, len(self.known))


class _Sparse(Interpreter):
    """Writes only some of the constraints of a plan."""

    def __init__(
        self, program: Program, plan: Plan, mesh: Any, readers: Readers, keys: frozenset[Key]
    ) -> None:
        super().__init__(program, plan, mesh, readers)
        self.keys = keys

    def _fix(self, value: int, array: Any) -> Any:
        return array

    def _read(self, op: Op, position: int, literal: Any) -> Any:
        value = op.inputs[position]
        if ("copy", value) not in self.keys:
            return literal if value < 0 else self.arrays.get(value, literal)
        return super()._read(op, position, literal)

    def _write(self, op: Op, results: Sequence[Any]) -> list[Any]:
        wanted = any(("value", value) in self.keys for value in op.outputs)
        if wanted and self.decisions.assignment[op.index] is not None:
            return super()._write(op, results)
        self.arrays.update(zip(op.outputs, results, strict=True))
        return list(results)


def _sparse(lowered: Lowered, readers: Readers, keys: frozenset[Key]) -> Lowered:
    def writer(program: Program, plan: Plan, mesh: Any) -> Interpreter:
        return _Sparse(program, plan, mesh, readers, keys)

    return _written(lowered, writer)


def _written(lowered: Lowered, writer: Callable[[Program, Plan, Any], Interpreter]) -> Lowered:
    """The step as `writer` writes the plan into it."""
    program, plan, mesh = lowered.program, lowered.plan, lowered.mesh

    def step(*arguments: Any) -> Any:
        flat = jax.tree.leaves(arguments)
        return jax.tree.unflatten(program.out_tree, writer(program, plan, mesh).run(*flat))

    step.__name__ = program.name
    return replace(lowered, fn=step)


def _explicit(lowered: Lowered) -> Any:
    """The step as Shardy makes it, every collective an operation."""
    module = lowered.lower(platforms=("tpu",)).compiler_ir("stablehlo")
    return compat.with_explicit_collectives(module)


def _cuts(explicit: Any) -> list[str]:
    """How every product of a module is cut, in program order."""
    found: list[str] = []

    def walk(operation: Any) -> None:
        for region in operation.regions:
            for block in region.blocks:
                for view in block.operations:
                    inner = view.operation
                    if inner.name in _PRODUCTS:
                        sharding = compat.shardy_sharding_of(inner.results[0])
                        dimensions = () if sharding is None else compat.shardy_layout(sharding)[1]
                        cut = dimensions if any(dimensions) else ()
                        found.append(f"{inner.results[0].type} {cut}")
                    walk(inner)

    walk(explicit)
    return found
