"""Which collectives a lowered module makes, read from Shardy's own passes, with no device.

Shardy propagates the layouts, decides how each operation runs, and turns every difference of
layouts into `all_gather`, `all_slice`, `all_to_all`, `all_reduce` or `collective_permute`. This
module runs those passes on a copy and lists the result, with loops and calls multiplied out:

    lowered = jax.jit(step).trace(*args).lower(lowering_platforms=("tpu",))
    print(compare(planned, explicit_collectives(lowered)))

**Bytes** are what one device holds: of the output for `all_gather` and `all_slice`, of the input
for the others. An `all_slice` moves nothing. Shardy writes reduce-scatter as `all_reduce` then
`all_slice`; `normalise` joins the two. Equal reshards of one value are listed as often as they
are written, although XLA merges them: share the resharded value where one move is meant.

What Shardy does with constraints, each pinned by a test:

* An operation runs on the axes of its constrained operands; a result constrained to something
  else is resharded after it. A constraint on the result alone flows backwards into the operands.
* Chained constraints on one value stay one by one. A reduced axis gives one `all_reduce`, over
  all reduced axes at once, also for max, min, and, or, products, gathers whose indexed dimension is
  sharded, and scatters that combine; a scatter that overwrites gathers its updates instead.
  Every result of a reduction with several results is reduced (argmax: two).
* A loop's carry takes its layout from the entry value, the body's first and last constraint
  together: all three must agree. Stacked inputs and results must not be sharded on the dimension
  that the loop runs over.
* A dimension that must be whole (sorted, concatenated, dynamically sliced) is moved to a free
  dimension by an `all_to_all`, and back.
* **Not listed, though data moves**: halos (pad, strided or shifted slice, convolution, reverse,
  cumulative sums and windows along a sharded dimension) and `top_k` along one: Shardy leaves them
  to the compiler. Collectives that the user wrote inside `shard_map` are not listed either.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

from autoshard import compat

KINDS = (
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "collective_permute",
    "all_slice",
)

_OPERATIONS = {f"sdy.{kind}": kind for kind in KINDS}
_AXES_ATTRIBUTE = {
    "all_gather": "gathering_axes",
    "all_reduce": "reduction_axes",
    "reduce_scatter": "reduce_scatter_axes",
    "all_slice": "slicing_axes",
    "all_to_all": "params",
}
_AXIS_IN_TEXT = re.compile(r'"([^"]+)"(?::\((\d+)\)(\d+))?')

# An axis as Shardy writes it: its name and, for a sub-axis, (product of sizes before, size).
_Axis = tuple[str, "tuple[int, int] | None"]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a module, with everything it is repeated by.

    `bytes` are local to one device, see the module. `counted_once` names the loops around it
    whose trip count is unknown. The last three fields tie a collective to the one whose result
    it reads.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    count: int = 1
    scope: str = ""
    line: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    counted_once: tuple[str, ...] = ()
    result: int = field(default=-1, compare=False, repr=False)
    operand: int | None = field(default=None, compare=False, repr=False)
    only_use: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is none of {', '.join(KINDS)}")
        if self.bytes < 0 or self.count < 0:
            raise ValueError(f"{self.kind}: bytes {self.bytes} and count {self.count} must be >= 0")

    def __str__(self) -> str:
        dims = ", ".join(str(size) for size in self.shape)
        text = f"{self.kind}({', '.join(self.axes)}) {self.bytes} B x {self.count}"
        what = f"{self.dtype}[{dims}]" if self.dtype else ""
        return "  ".join(part for part in (text, what, self.scope, self.line) if part)


class CollectiveLike(Protocol):
    """What `compare` needs of a planned move; `scope` and `line` are shown where present."""

    @property
    def kind(self) -> str: ...
    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def bytes(self) -> int: ...
    @property
    def count(self) -> int: ...


def explicit_collectives(
    module_or_lowered: Any, *, trip_counts: Mapping[str, int] | None = None
) -> list[Collective]:
    """Every collective that Shardy makes of a lowered module, in program order.

    Args:
        module_or_lowered: `jax.stages.Lowered`, or its `compiler_ir("stablehlo")`; it stays as
            it is.
        trip_counts: trip counts of `while` loops without a constant bound, by a piece of the
            loop's name stack or its source line (`"file.py:12"`). A loop that is not found is
            counted once, and its collectives say so in `counted_once`.

    A function's collectives are counted at each call, those of all branches of a `cond` once.
    """
    module = module_or_lowered
    if hasattr(module, "compiler_ir"):
        module = module.compiler_ir("stablehlo")
    copy = compat.with_explicit_collectives(module)
    reader = _Reader(dict(trip_counts or {}))
    return reader.read(copy)


# -- reading a module ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """A collective as it stands in its function."""

    template: Collective
    operand: Any
    result: Any
    only_use: bool


@dataclass(frozen=True, slots=True)
class _Call:
    callee: str
    operands: tuple[Any, ...]
    results: tuple[Any, ...]
    scope: str
    line: str
    count: int
    counted_once: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Function:
    arguments: tuple[Any, ...]
    events: tuple[_Found | _Call, ...]
    returned: tuple[Any, ...]


# The collective that made a value, and whether every step from there had this one use only.
_Origin = tuple[int, bool]


class _Reader:
    """Reads functions once each, then writes out their collectives call by call."""

    def __init__(self, trip_counts: dict[str, int]) -> None:
        self.trip_counts = trip_counts
        self.mesh_axes: dict[str, tuple[tuple[str, int], ...]] = {}
        self.layouts: dict[Any, tuple[tuple[tuple[str, int], ...], tuple[tuple[_Axis, ...], ...]]]
        self.layouts = {}
        self.functions: dict[str, _Function] = {}
        self.found: list[Collective] = []

    def read(self, module: Any) -> list[Collective]:
        bodies: dict[str, Any] = {}
        for operation in _operations(module.operation):
            if operation.name == "sdy.mesh":
                name = str(operation.attributes["sym_name"]).strip('"')
                self.mesh_axes[name] = compat.shardy_mesh_axes(operation.attributes["mesh"])
            elif operation.name == "func.func":
                bodies[str(operation.attributes["sym_name"]).strip('"')] = operation
        for name, operation in bodies.items():
            self.functions[name] = self._function(operation)
        self._expand("main", {}, scope="", line="", count=1, counted_once=())
        return self.found

    def _function(self, operation: Any) -> _Function:
        block = operation.regions[0].blocks[0]
        events: list[_Found | _Call] = []
        self._events(block, 1, (), events)
        last = list(block.operations)[-1].operation
        return _Function(tuple(block.arguments), tuple(events), tuple(last.operands))

    def _events(
        self, block: Any, count: int, unknown: tuple[str, ...], events: list[_Found | _Call]
    ) -> None:
        for view in block.operations:
            operation = view.operation
            name = operation.name
            if name in _OPERATIONS:
                events.append(self._collective(operation, _OPERATIONS[name], count, unknown))
                continue
            if name == "func.call":
                scope, line = _where(operation)
                callee = str(operation.attributes["callee"]).lstrip("@").strip('"')
                operands, results = tuple(operation.operands), tuple(operation.results)
                call = _Call(callee, operands, results, scope, line, count, unknown)
                events.append(call)
                continue
            inner, once = count, unknown
            if name == "stablehlo.while":
                trips, text = self._trips(operation)
                inner, once = (count, (*unknown, text)) if trips is None else (count * trips, once)
            for region in operation.regions:
                for nested in region.blocks:
                    self._events(nested, inner, once, events)

    def _trips(self, loop: Any) -> tuple[int | None, str]:
        scope, line = _where(loop)
        for key, trips in self.trip_counts.items():
            if key in scope or key == line:
                return trips, scope
        return _constant_trips(loop), f"{scope} {line}".strip() or "a while loop"

    def _layout(
        self, sharding: Any
    ) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[_Axis, ...], ...]]:
        """(axes of the mesh, axes of each dimension) of a sharding attribute."""
        if sharding not in self.layouts:
            mesh, dimensions = compat.shardy_layout(sharding)
            if isinstance(mesh, str):
                mesh_axes = self.mesh_axes[mesh]
            else:
                mesh_axes = compat.shardy_mesh_axes(mesh)
            self.layouts[sharding] = (mesh_axes, dimensions)
        return self.layouts[sharding]

    def _collective(
        self, operation: Any, kind: str, count: int, unknown: tuple[str, ...]
    ) -> _Found:
        attributes = operation.attributes
        operand, result = operation.operands[0], operation.results[0]
        mesh_axes, after = self._layout(attributes["out_sharding"])
        sizes = dict(mesh_axes)
        if kind == "collective_permute":
            sharding = compat.shardy_sharding_of(operand)
            before = ((),) * len(after) if sharding is None else self._layout(sharding)[1]
            axes = _permuted(before, after, sizes)
        else:
            axes = tuple(_axes_in(str(attributes[_AXES_ATTRIBUTE[kind]])))
        type_text = result.type
        shape = tuple(type_text.shape)
        dtype, bits = _element_type(str(type_text.element_type))
        local = [
            -(-size // math.prod(_axis_size(axis, sizes) for axis in dimension))
            for size, dimension in zip(shape, after, strict=True)
        ]
        elements = math.prod(local)
        if kind == "reduce_scatter":
            elements *= math.prod(_axis_size(axis, sizes) for axis in axes)
        scope, line = _where(operation)
        template = Collective(
            kind=kind,
            axes=_printed(axes, sizes),
            bytes=-(-elements * bits // 8),
            count=count,
            scope=scope,
            line=line,
            shape=shape,
            dtype=dtype,
            counted_once=unknown,
        )
        return _Found(template, operand, result, _used_once(operand))

    def _expand(
        self,
        name: str,
        origins: dict[Any, _Origin],
        *,
        scope: str,
        line: str,
        count: int,
        counted_once: tuple[str, ...],
    ) -> list[_Origin | None]:
        """Write out one call of a function; what its results come from is returned."""
        function = self.functions[name]
        for event in function.events:
            if isinstance(event, _Found):
                origin = origins.get(event.operand)
                template = event.template
                token = len(self.found)
                self.found.append(
                    replace(
                        template,
                        count=count * template.count,
                        scope=_joined(scope, template.scope),
                        line=template.line or line,
                        counted_once=(*counted_once, *template.counted_once),
                        result=token,
                        operand=None if origin is None else origin[0],
                        only_use=origin is not None and origin[1] and event.only_use,
                    )
                )
                origins[event.result] = (token, True)
                continue
            callee = self.functions[event.callee]
            inner: dict[Any, _Origin] = {}
            for argument, operand in zip(callee.arguments, event.operands, strict=True):
                if operand in origins:
                    token, single = origins[operand]
                    inner[argument] = (token, single and _used_once(operand))
            returned = self._expand(
                event.callee,
                inner,
                scope=_joined(scope, event.scope),
                line=event.line or line,
                count=count * event.count,
                counted_once=(*counted_once, *event.counted_once),
            )
            for result, origin in zip(event.results, returned, strict=True):
                if origin is not None:
                    origins[result] = origin
        outcome: list[_Origin | None] = []
        for value in function.returned:
            token, single = origins.get(value, (None, False))
            outcome.append(None if token is None else (token, single and _used_once(value)))
        return outcome


def _operations(operation: Any) -> Iterator[Any]:
    for view in operation.regions[0].blocks[0].operations:
        yield view.operation


def _used_once(value: Any) -> bool:
    return sum(1 for _ in value.uses) == 1


def _joined(outer: str, inner: str) -> str:
    return "/".join(part for part in (outer, inner) if part)


def _where(operation: Any) -> tuple[str, str]:
    """(name stack, `file.py:12` of the innermost frame outside of this package's lowering)."""
    scope, frames = compat.location_frames(operation.location)
    here = os.path.dirname(os.path.abspath(__file__))
    for path, line in frames:
        if not path.startswith(here):
            return scope, f"{os.path.basename(path)}:{line}"
    return scope, ""


def _axes_in(text: str) -> Iterator[_Axis]:
    """The axes of a printed list: `[{"x"}, {"y":(1)2}]` has x and the first half of y."""
    for name, before, size in _AXIS_IN_TEXT.findall(text):
        yield name, (int(before), int(size)) if size else None


def _axis_size(axis: _Axis, sizes: Mapping[str, int]) -> int:
    name, part = axis
    return part[1] if part else sizes[name]


def permuted_axes(
    before: Sequence[Sequence[str]], after: Sequence[Sequence[str]], mesh_axes: Mapping[str, int]
) -> tuple[str, ...]:
    """The axes of the `collective_permute` between two layouts with equal local shapes.

    Args:
        before: the axes of each dimension, major first; sub-axes as `"x:(1)2"`.
        after: the same, of the layout to reach.
        mesh_axes: sizes by name, in mesh order.

    Axes that stand first or last in a dimension of both layouts take no part.

    >>> permuted_axes([("x", "y"), ()], [("y", "x"), ()], {"x": 2, "y": 4})
    ('x', 'y')
    """
    parsed = [
        tuple(tuple(_axis(name) for name in dimension) for dimension in layout)
        for layout in (before, after)
    ]
    return _printed(_permuted(parsed[0], parsed[1], mesh_axes), mesh_axes)


def _permuted(
    before: Sequence[Sequence[_Axis]], after: Sequence[Sequence[_Axis]], sizes: Mapping[str, int]
) -> tuple[_Axis, ...]:
    cuts: dict[str, set[int]] = {}
    for layout in (before, after):
        for name, part in (axis for dimension in layout for axis in dimension):
            first, size = part or (1, sizes[name])
            cuts.setdefault(name, set()).update((first, first * size))

    def pieces(axes: Sequence[_Axis]) -> list[_Axis]:
        found: list[_Axis] = []
        for name, part in axes:
            first, size = part or (1, sizes[name])
            inside = sorted(cut for cut in cuts[name] if first <= cut <= first * size)
            found.extend((name, (low, high // low)) for low, high in pairwise(inside))
        return found

    moved: dict[_Axis, None] = {}
    for dimension_before, dimension_after in zip(before, after, strict=True):
        old, new = pieces(dimension_before), pieces(dimension_after)
        while old and new and old[0] == new[0]:
            old, new = old[1:], new[1:]
        while old and new and old[-1] == new[-1]:
            old, new = old[:-1], new[:-1]
        moved.update(dict.fromkeys((*old, *new)))
    return tuple(moved)


def _axis(name: str) -> _Axis:
    """`x` or `x:(1)2` as Shardy's pair of name and sub-axis."""
    whole, _, part = name.partition(":(")
    if not part:
        return whole, None
    before, _, size = part.partition(")")
    return whole, (int(before), int(size))


def _printed(axes: Iterable[_Axis], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Names in mesh order, with adjacent parts of one axis joined."""
    parts: dict[str, list[tuple[int, int]]] = {}
    for name, part in set(axes):
        parts.setdefault(name, []).append(part or (1, sizes[name]))
    printed = []
    for name in (name for name in sizes if name in parts):
        joined: list[tuple[int, int]] = []
        for first, size in sorted(parts[name]):
            if joined and joined[-1][0] * joined[-1][1] == first:
                joined[-1] = (joined[-1][0], joined[-1][1] * size)
            else:
                joined.append((first, size))
        for first, size in joined:
            printed.append(name if size == sizes[name] else f"{name}:({first}){size}")
    return tuple(printed)


def _element_type(text: str) -> tuple[str, int]:
    """(JAX's short name, bits in memory) of an MLIR element type: `ui32` is (`u32`, 32)."""
    if text.startswith("complex<"):
        _, bits = _element_type(text[len("complex<") : -1])
        return f"c{2 * bits}", 2 * bits
    if text == "i1":
        return "bool", 8
    name = text.replace("ui", "u", 1) if text.startswith("ui") else text
    digits = re.search(r"\d+", text)
    if digits is None:
        raise ValueError(f"element type {text} has no width")
    return name, int(digits.group())


def _constant(value: Any) -> int | None:
    """The integer that a value is, where a constant makes it."""
    if compat.is_block_argument(value) is not None:
        return None
    owner = value.owner
    if owner.name not in ("sdy.constant", "stablehlo.constant"):
        return None
    return compat.splat_integer(owner.attributes["value"])


def _constant_trips(loop: Any) -> int | None:
    """The trip count of `for i in range(start, bound, step)` with three constants, or None."""
    condition = loop.regions[0].blocks[0]
    decision = list(condition.operations)[-1].operation.operands[0]
    if compat.is_block_argument(decision) is not None:
        return None
    test = decision.owner
    if test.name != "stablehlo.compare" or "LT" not in str(test.attributes["comparison_direction"]):
        return None
    index = compat.is_block_argument(test.operands[0])
    bound = _constant(test.operands[1])
    if index is None or bound is None:
        return None
    body = loop.regions[1].blocks[0]
    step_value = list(body.operations)[-1].operation.operands[index]
    if compat.is_block_argument(step_value) is not None:
        return None
    addition = step_value.owner
    if addition.name != "stablehlo.add":
        return None
    counter, other = addition.operands[0], addition.operands[1]
    step = _constant(other)
    start = _constant(loop.operands[index])
    if counter != body.arguments[index] or step is None or step < 1 or start is None:
        return None
    return max(0, -(-(bound - start) // step))


# -- all_reduce and all_slice --------------------------------------------------------------------


def normalise(collectives: Sequence[Collective]) -> list[Collective]:
    """Join each `all_reduce` with the slices of its only use into a `reduce_scatter`.

    Slices that cover all reduced axes make the reduction a `reduce_scatter` (bytes: the local
    input); axes that were sliced but not reduced stay an `all_slice` after it. Slices that cover
    only some of the reduced axes change nothing.

        all_reduce(x), all_slice(x)        ->  reduce_scatter(x)
        all_reduce(x), all_slice(x, y)     ->  reduce_scatter(x), all_slice(y)
        all_reduce(x, y), all_slice(x)     ->  all_reduce(x, y), all_slice(x)
    """
    readers: dict[int, list[int]] = {}
    for index, one in enumerate(collectives):
        if one.operand is not None:
            readers.setdefault(one.operand, []).append(index)
    replaced: dict[int, Collective | None] = {}
    for index, one in enumerate(collectives):
        if one.kind != "all_reduce":
            continue
        chain, sliced, last = [], [], one
        while not set(one.axes) <= set(sliced):
            after = readers.get(last.result, [])
            if len(after) != 1:
                break
            following = collectives[after[0]]
            same_loop = following.count == one.count
            if following.kind != "all_slice" or not following.only_use or not same_loop:
                break
            chain.append(after[0])
            sliced.extend(following.axes)
            last = following
        if not chain or not set(one.axes) <= set(sliced):
            continue
        rest = tuple(axis for axis in sliced if axis not in one.axes)
        scattered = replace(one, kind="reduce_scatter", result=one.result if rest else last.result)
        replaced[index] = scattered
        replaced.update(dict.fromkeys(chain))
        if rest:
            replaced[chain[-1]] = replace(last, axes=rest, operand=scattered.result, only_use=True)
    result = []
    for index, one in enumerate(collectives):
        kept = replaced.get(index, one)
        if kept is not None:
            result.append(kept)
    return result


# -- plan against compiler -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tally:
    """How often one (kind, axes, bytes) is planned and found, and where."""

    kind: str
    axes: tuple[str, ...]
    bytes: int
    planned: int
    found: int
    planned_at: tuple[str, ...] = ()
    found_at: tuple[str, ...] = ()

    @property
    def matched(self) -> int:
        return min(self.planned, self.found)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A plan's moves beside those that the compiler makes, each with its counts.

    `all_slice` moves nothing, so `slices` hold no failure. `counted_once` names loops of unknown
    trip count, whose collectives were counted once.
    """

    tallies: tuple[Tally, ...]
    slices: tuple[Tally, ...] = ()
    counted_once: tuple[str, ...] = ()

    @property
    def matched(self) -> tuple[Tally, ...]:
        """The tallies with something planned and found."""
        return tuple(tally for tally in self.tallies if tally.matched)

    @property
    def missing(self) -> tuple[Tally, ...]:
        """The tallies that are planned more often than found."""
        return tuple(tally for tally in self.tallies if tally.planned > tally.found)

    @property
    def unplanned(self) -> tuple[Tally, ...]:
        """The tallies that are found more often than planned."""
        return tuple(tally for tally in self.tallies if tally.found > tally.planned)

    @property
    def agrees(self) -> bool:
        """Whether kinds, axes, bytes and counts are all equal."""
        return not self.missing and not self.unplanned

    def __bool__(self) -> bool:
        return self.agrees

    def __str__(self) -> str:
        agreed = sum(tally.matched for tally in self.tallies)
        lacking = sum(tally.planned - tally.found for tally in self.missing)
        surplus = sum(tally.found - tally.planned for tally in self.unplanned)
        lines = [f"collectives: {agreed} as planned, {lacking} missing, {surplus} unplanned"]
        rows = [("", "kind", "axes", "local bytes", "planned", "found", "where")]
        for tally in self.tallies:
            if tally.planned == tally.found:
                verdict, where = "ok", tally.found_at
            elif tally.planned > tally.found:
                verdict, where = "missing", tally.planned_at
            else:
                verdict, where = "unplanned", tally.found_at
            rows.append(
                (
                    verdict,
                    tally.kind,
                    ",".join(tally.axes),
                    f"{tally.bytes:,}",
                    f"{tally.planned:,}",
                    f"{tally.found:,}",
                    _some(where),
                )
            )
        if len(rows) > 1:
            widths = [max(len(row[column]) for row in rows) for column in range(7)]
            for row in rows:
                cells = [
                    text.rjust(width) if column in (3, 4, 5) else text.ljust(width)
                    for column, (text, width) in enumerate(zip(row, widths, strict=True))
                ]
                lines.append("  ".join(cells).rstrip())
        if self.slices:
            planned = sum(tally.planned for tally in self.slices)
            found = sum(tally.found for tally in self.slices)
            lines.append(f"all_slice, which moves nothing: {planned} planned, {found} found")
        lines.extend(
            f"counted once, because its trip count is unknown: {loop}; pass trip_counts"
            for loop in self.counted_once
        )
        return "\n".join(lines)


def _some(places: tuple[str, ...], most: int = 2) -> str:
    more = len(places) - most
    return "; ".join(places[:most]) + (f"; and {more} more" if more > 0 else "")


def compare(planned: Iterable[CollectiveLike], found: Sequence[Collective]) -> Comparison:
    """A plan's moves against those that were found, as multisets of (kind, axes, bytes).

    Args:
        planned: the plan's moves; the order of their axes does not matter.
        found: what `explicit_collectives` returned, `normalise`d here.
    """
    moves = tuple(normalise(found))
    left, left_at = _multiset(planned)
    right, right_at = _multiset(moves)
    tallies = [
        Tally(kind, axes, size, left[key], right[key], left_at.get(key, ()), right_at.get(key, ()))
        for key in sorted(left | right, key=lambda key: (KINDS.index(key[0]), -key[2], key[1]))
        for kind, axes, size in (key,)
    ]
    return Comparison(
        tuple(tally for tally in tallies if tally.kind != "all_slice"),
        tuple(tally for tally in tallies if tally.kind == "all_slice"),
        tuple(dict.fromkeys(loop for move in moves for loop in move.counted_once)),
    )


_Key = tuple[str, tuple[str, ...], int]


def _multiset(
    collectives: Iterable[CollectiveLike],
) -> tuple[Counter[_Key], dict[_Key, tuple[str, ...]]]:
    counts: Counter[_Key] = Counter()
    places: dict[_Key, dict[str, None]] = {}
    for one in collectives:
        if one.count == 0:
            continue
        key = (one.kind, tuple(sorted(one.axes)), one.bytes)
        counts[key] += one.count
        parts = (getattr(one, "scope", ""), getattr(one, "line", ""))
        text = " ".join(part for part in parts if part)
        if text:
            places.setdefault(key, {})[text] = None
    return counts, {key: tuple(texts) for key, texts in places.items()}
