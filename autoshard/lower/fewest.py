"""The fewest annotations with which Shardy's own propagation makes the plan.

`autoshard.lower` constrains every value. With the shardings of the inputs and results given, most
of that follows by propagation, and few `with_sharding_constraint`s remain to be written by hand.
A **site** is a place in the user's code: a value that an operation makes, or a value that is
resharded before it is read. Sites of repeated blocks (equal line, operation, type and layout) are
one site, as they are one line of code.

A set of sites is held to the plan by lowering the step with these constraints alone and running
Shardy's passes: it must make the planned collectives (kinds, axes, bytes, counts), and cut all
matrix products as the fully annotated step does. From all sites, those that can be left out are
left out, in halves first (QuickXplain, see `autoshard.conflicts`): of the sites that remain none
can be left out, although another set might be smaller still.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from autoshard import compat
from autoshard.conflicts import minimal_conflict
from autoshard.copies import ANEW, BACKWARD
from autoshard.cost.flops import is_matrix_op
from autoshard.evaluate import ChosenStrategies
from autoshard.layout import UNREDUCED, dimension_axes
from autoshard.lower.collectives import explicit_collectives
from autoshard.lower.compare import compare
from autoshard.lower.interpret import Interpreter, LoweringError
from autoshard.lower.spmd import Lowered
from autoshard.plan import Plan
from autoshard.program import Op, Program
from autoshard.targets import group_path, scope_names, shown_path

_PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})


@dataclass(frozen=True, slots=True)
class Site:
    """A place for one `with_sharding_constraint`, or for a few that follow each other.

    Attributes:
      what: the value, as the user knows it: the operation that makes it, or its tree path.
      line: of the user's code; for a value that is resharded, where it is read first.
      specs: one `PartitionSpec` after another, as text.
      type: of the whole value.
      copy: whether the value is resharded there; it is stored otherwise.
      backward: whether that is in the backward pass.
      anew: whether the copy is made once more for the backward pass, behind an
        `optimization_barrier`.
    """

    what: str
    line: str
    specs: tuple[str, ...]
    type: str
    copy: bool
    backward: bool
    anew: bool = False

    def __str__(self) -> str:
        call = "x"
        for spec in self.specs:
            call = f"with_sharding_constraint({call}, {spec})"
        notes = [f"{self.what}, {self.type}", "before it is read" if self.copy else "once made"]
        if self.backward:
            notes.append("in the backward pass")
        if self.anew:
            notes.append("and again behind an optimization_barrier for the backward pass")
        return f"{self.line or '(no line)'}: x = {call}  # {', '.join(notes)}"


@dataclass(frozen=True, slots=True, eq=False)
class Fewest:
    """What `fewest` found.

    Attributes:
      sites: of which none can be left out.
      lowered: the step with these constraints alone; it makes the planned collectives.
      of: how many sites there are in all.
    """

    sites: tuple[Site, ...]
    lowered: Lowered
    of: int

    def __str__(self) -> str:
        if not self.sites:
            return "the shardings of inputs and results are enough"
        heading = (
            f"{len(self.sites)} of {self.of} places, beside the shardings of inputs and results:"
        )
        return "\n".join([heading, *(f"  {site}" for site in self.sites)])


def fewest(lowered: Lowered, *, heard: Callable[[int, bool], None] | None = None) -> Fewest:
    """Find the annotations of a plan that cannot be left out.

    Args:
      lowered: from `autoshard.lower`.
      heard: called after every check with the number of sites and whether they sufficed.

    Raises:
      LoweringError: even all sites together do not make the plan; use `autoshard.lower`.
    """
    terms = [
        _name(lowered.program, value)
        for value, layout in enumerate(lowered.plan.decisions.stored)
        if layout is not None and UNREDUCED in layout
    ]
    if terms:
        raise LoweringError(
            f"the plan of {lowered.program.name} leaves terms of sums unreduced "
            f"({', '.join(dict.fromkeys(terms))}), which no constraint can say: search without "
            "join_sums, or use autoshard.lower"
        )
    places = list(_places(lowered.program, lowered.plan))
    sites = list(dict.fromkeys(site for _, site in places))
    wanted = _products(lowered)

    def annotated(chosen: Sequence[int]) -> Lowered:
        some = {sites[number] for number in chosen}
        keys = frozenset(key for key, site in places if site in some)
        return _sparse(lowered, keys)

    def suffices(chosen: Sequence[int]) -> bool:
        made = annotated(chosen)
        result = _makes(made, lowered.plan, wanted)
        if heard is not None:
            heard(len(chosen), result)
        return result

    everything = list(range(len(sites)))
    if suffices([]):
        return Fewest((), annotated([]), len(sites))
    if not suffices(everything):
        raise LoweringError(
            f"the plan of {lowered.program.name} is not made by constraints on values alone; use "
            "autoshard.lower"
        )
    chosen = minimal_conflict(everything, lambda some: not suffices(some))
    chosen = _without_any(chosen, suffices)
    kept = tuple(sites[number] for number in sorted(chosen))
    return Fewest(kept, annotated(chosen), len(sites))


def _without_any(chosen: list[int], suffices: Callable[[Sequence[int]], bool]) -> list[int]:
    """Leave out what can be left out, one by one, until nothing can.

    Propagation is not monotone: with fewer constraints one that was needed may be needless.
    """
    while True:
        for number in reversed(chosen):
            rest = [other for other in chosen if other != number]
            if suffices(rest):
                chosen = rest
                break
        else:
            return chosen


# -- places ----------------------------------------------------------------------------------------

Key = tuple[str, int]
"""("value", number of a value) or ("copy", number of a value)."""


def _places(program: Program, plan: Plan) -> Iterator[tuple[Key, Site]]:
    """Every value that can be constrained, those most worth it first.

    Results of products and reads of inputs come before the rest, the forward pass before the
    backward pass, since those are what people write.
    """
    found = [*_copies(program, plan), *_results(program, plan)]
    found.sort(key=lambda one: (one[1].backward, one[0]))
    yield from ((key, site) for _, site, key in ((rank, site, key) for rank, site, key in found))


def _copies(program: Program, plan: Plan) -> Iterator[tuple[int, Site, Key]]:
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
        name = _name(program, value.index)
        site = Site(name, line, specs, str(value), True, backward, mode == ANEW)
        yield 0, site, ("copy", value.index)


def _results(program: Program, plan: Plan) -> Iterator[tuple[int, Site, Key]]:
    chosen = ChosenStrategies(plan.decisions, plan.mesh.sizes)
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
            name = _name(program, value)
            site = Site(name, op.line, specs, str(record), False, op.backward)
            rank = 1 if is_matrix_op(op.primitive) else 2
            yield rank + op.boundary, site, ("value", value)


def _name(program: Program, value: int) -> str:
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


# -- checks ----------------------------------------------------------------------------------------


class _Sparse(Interpreter):
    """Writes only some of the constraints of a plan."""

    def __init__(self, program: Program, plan: Plan, mesh: Any, keys: frozenset[Key]) -> None:
        super().__init__(program, plan, mesh)
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


def _sparse(lowered: Lowered, keys: frozenset[Key]) -> Lowered:
    program, plan, mesh = lowered.program, lowered.plan, lowered.mesh

    def step(*arguments: Any) -> Any:
        flat = jax.tree.leaves(arguments)
        return jax.tree.unflatten(program.out_tree, _Sparse(program, plan, mesh, keys).run(*flat))

    step.__name__ = program.name
    return replace(lowered, fn=step)


def _makes(lowered: Lowered, plan: Plan, wanted: Sequence[str]) -> bool:
    """Whether Shardy makes the planned collectives, and cuts the products as wanted."""
    module = lowered.lower(platforms=("tpu",)).compiler_ir("stablehlo")
    if not compare(plan.moves, explicit_collectives(module)).agrees:
        return False
    return _cuts(module) == list(wanted)


def _products(lowered: Lowered) -> list[str]:
    return _cuts(lowered.lower(platforms=("tpu",)).compiler_ir("stablehlo"))


def _cuts(module: Any) -> list[str]:
    """How every product of a module is cut, in program order."""
    explicit = compat.with_explicit_collectives(module)
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
