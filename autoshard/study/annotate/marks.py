"""Which values of a program are at a spot of the user's code.

The function is traced once more with a mark at every spot: a constraint under a scope with the
spot's number. A mark between two others (of a call that does nothing) is left out. Without the
marks its operations are those of the program, but for some that carry a marked array beside the
same array unmarked.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from autoshard import compat
from autoshard.program.as_run.planned import as_planned
from autoshard.program.flatten import Flattener
from autoshard.program.trace import Program
from autoshard.study.annotate.source_lines import Spot, with_lines

_MARK = re.compile(r"at_(\d+)_(\d+)_")


def scope_of(number: int, constraint: int) -> str:
    """The scope of what is constrained at a spot: its number, and that of the constraint."""
    return f"at_{number}_{constraint}_"


def mark_of(scope: str) -> tuple[int, int] | None:
    """The numbers in a scope, or None where there is no mark."""
    found = _MARK.search(scope)
    return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class Marked:
    """A value of the program at a spot.

    Attributes:
      value: that is there.
      cotangent: whether it is the cotangent of what the user's code has there.
      again: whether it is what the user's code has there, computed again.
      gradient: whether it is that from which the gradients of the other operands of a product are
        computed.
      given: whether it is the cotangent of a product, from which that of the operand there is.
      readers: the ops that read it there, and which of their operands it is.
      scope, trips: where that is, and how often.
      made, read: whether an op makes it there, and one reads it there, with no spot in between.
      order: how many marks of the program are before it.
      mapped: dimensions of the value that the user's code there does not see: those of
        `jax.vmap`s around it. A line there leaves them open.
      taken: mesh axes that `jax.vmap` itself lays such dimensions over (`spmd_axis_name`).
    """

    value: int
    cotangent: bool
    again: bool
    readers: tuple[tuple[int, int], ...]
    scope: str
    trips: int
    gradient: bool = False
    given: bool = False
    made: bool = True
    read: bool = True
    order: int = 0
    mapped: tuple[int, ...] = ()
    taken: frozenset[str] = frozenset()


def marked_values(
    program: Program,
    mesh: Any,
    fn: Callable[..., Any],
    args: Sequence[Any],
    numbers: Mapping[Spot, int],
) -> dict[int, list[Marked]]:
    """The values of a program at every spot: as they are made, made again, and their cotangents.

    Spots that `numbers` has under their scope are told apart by it.
    """
    traced = jax.jit(with_lines(fn, _marker(mesh, numbers))).trace(*args)
    flat = Flattener(program.options.get("trip_counts", 1))
    flat.run(
        as_planned(compat.in_lax(traced.jaxpr)),
        [""] * len(program.inputs),
        [""] * len(program.outputs),
    )
    ops, at = _without_marks(flat)
    same, readers = _found_in(program, flat, ops)
    for mark in reversed(at):  # what reads a mark of a mark reads both
        readers[mark.op["inputs"][0]] += readers[mark.op["outputs"][0]]
    direct = {value for op in ops for value in op["inputs"]}
    marks: dict[int, list[Marked]] = defaultdict(list)
    for order, mark in enumerate(at):
        op, kind = mark.op, mark.constraint
        straight = op["outputs"][0] in direct
        if mark.behind in same and (mark.made or straight):
            mapped, taken = _mapped(flat.equations[op["index"]])
            marks[mark.number].append(
                Marked(
                    value=same[mark.behind],
                    cotangent=op["backward"] and not op["recomputed"] and not kind,
                    again=op["recomputed"] and not kind,
                    readers=tuple(readers[op["outputs"][0]]),
                    scope=_MARK.sub("", op["scope"]).strip("/"),
                    trips=op["trips"],
                    gradient=kind == 1,
                    given=kind == 2,
                    made=mark.made,
                    read=straight,
                    order=order,
                    mapped=mapped,
                    taken=taken,
                )
            )
    return marks


def _mapped(mark: Any) -> tuple[tuple[int, ...], frozenset[str]]:
    """The dimensions that `jax.vmap` gave to a mark, and the axes that it laid them over.

    A mark asks for a whole array, and `jax.vmap` leaves what it maps open, or lays it over the axes
    that it is told.
    """
    unconstrained = mark.params.get("unconstrained_dims") or ()
    cut = {
        number: entry if isinstance(entry, tuple) else (entry,)
        for number, entry in enumerate(mark.params["sharding"].spec)
        if entry is not None and entry is not PartitionSpec.UNCONSTRAINED
    }
    taken = frozenset(name for names in cut.values() for name in names)
    return tuple(sorted({*unconstrained, *cut})), taken


def _marker(mesh: Any, numbers: Mapping[Spot, int]) -> Callable[[Spot, Any], Any]:
    """What puts a mark on an array at a spot."""
    whole = NamedSharding(mesh, PartitionSpec())

    def marked(array: Any, scope: str) -> Any:
        with jax.named_scope(scope):
            return jax.lax.with_sharding_constraint(array, whole)

    def mark(spot: Spot, array: Any) -> Any:
        number = numbers.get(spot, numbers.get(spot.anywhere))
        if number is None:
            return array
        marks = [functools.partial(marked, scope=scope_of(number, kind)) for kind in range(3)]
        if spot.read and spot.primitive in compat.PRODUCTS:
            made, gradient, given = marks
            return compat.Read(array).then(made, made, made, gradient, given)
        return marks[0](array)

    return mark


@dataclass(frozen=True, slots=True)
class _Mark:
    """A mark in the traced function.

    Attributes:
      number, constraint: see `mark_of`.
      op: that is the mark.
      behind: what the marked value is without its marks.
      made: whether what is marked is not a mark itself.
    """

    number: int
    constraint: int
    op: Mapping[str, Any]
    behind: int
    made: bool


def _without_marks(flat: Flattener) -> tuple[list[Mapping[str, Any]], list[_Mark]]:
    """The ops that are not marks, and the marks."""
    behind: dict[int, int] = {}
    ops, at = [], []
    for op in flat.ops:
        found = mark_of(op["scope"]) if op["primitive"] == "sharding_constraint" else None
        if found is None:
            ops.append(op)
            continue
        source: int = op["inputs"][0]
        behind[op["outputs"][0]] = behind.get(source, source)
        at.append(_Mark(*found, op, behind[op["outputs"][0]], source not in behind))
    return ops, at


def _found_in(
    program: Program, flat: Flattener, ops: Sequence[Mapping[str, Any]]
) -> tuple[dict[int, int], dict[int, list[tuple[int, int]]]]:
    """The program's values by those of the marked function, and who reads these in the program."""

    def key(primitive: str, scope: str, line: str, shapes: Sequence[Any]) -> tuple[Any, ...]:
        # Where a cotangent is added up is the line of what was read last: of a mark, perhaps.
        line = "" if primitive == "add_any" else line
        return primitive, _MARK.sub("", scope).strip("/"), line, *shapes

    ours = [
        key(op["primitive"], op["scope"], op["line"], [flat.values[v].shape for v in op["outputs"]])
        for op in ops
    ]
    theirs = [
        key(op.primitive, op.scope, op.line, [program.values[v].shape for v in op.outputs])
        for op in program.ops
    ]
    same: dict[int, int] = dict(zip(flat.inputs, program.inputs, strict=True))
    readers: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one, other in _aligned(ours, theirs):
        outputs: Sequence[int] = ops[one]["outputs"]
        same.update(zip(outputs, program.ops[other].outputs, strict=True))
        for position, value in enumerate(ops[one]["inputs"]):
            readers[value].append((other, position))
    return same, readers


def _aligned(ours: Sequence[Any], theirs: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Positions of two almost equal sequences that belong together."""
    if ours == theirs:
        yield from ((k, k) for k in range(len(ours)))
        return
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    for block in matcher.get_matching_blocks():
        yield from ((block.a + k, block.b + k) for k in range(block.size))
