"""Which collectives a lowered module makes, read from Shardy's own passes, with no device.

Shardy propagates the layouts, decides how each operation runs, and turns every difference of
layouts into `all_gather`, `all_slice`, `all_to_all`, `all_reduce` or `collective_permute`. This
module runs those passes on a copy and lists the result, with loops and calls multiplied out:

    lowered = jax.jit(step).trace(*args).lower(lowering_platforms=("tpu",))
    print(compare(planned, explicit_collectives(lowered)))

**Bytes** are what one device holds: of the output for `all_gather` and `all_slice`, of the input
for the others. An `all_slice` moves nothing. Shardy writes reduce-scatter as `all_reduce` then
`all_slice`; `compare.normalise` joins the two. Equal reshards of one value are listed as often as
they are written, although XLA merges them: share the resharded value where one move is meant.

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
  to the compiler. Inside of a `shard_map` permutes alone are listed (`lower.kernels.ring`), and
  exchanges of ragged rows (`lower.parts.row_exchange`), whose loop counts as one round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard import compat
from autoshard.lower.axes import Axis, axes_in, axis_size, permuted, printed_axes
from autoshard.lower.facts.collective import KINDS, Collective
from autoshard.lower.facts.loop_trips import LoopsOfModule, LoopTrips
from autoshard.lower.facts.module_facts import (
    constant_trips,
    element_type,
    exchanged_over,
    is_ragged_exchange,
    joined_scope,
    operations,
    sent_over,
    used_once,
    where,
)
from autoshard.program.ragged import ROUNDS

__all__ = ["KINDS", "Collective", "explicit_collectives", "read_collectives"]

_OPERATIONS = {f"sdy.{kind}": kind for kind in KINDS}
_AXES_ATTRIBUTE = {
    "all_gather": "gathering_axes",
    "all_reduce": "reduction_axes",
    "reduce_scatter": "reduce_scatter_axes",
    "all_slice": "slicing_axes",
    "all_to_all": "params",
}


def explicit_collectives(
    module_or_lowered: Any,
    *,
    trip_counts: Mapping[str, int] | None = None,
    loops: Sequence[LoopTrips] = (),
) -> list[Collective]:
    """Every collective that Shardy makes of a lowered module, in program order.

    Args:
        module_or_lowered: `jax.stages.Lowered`, or its `compiler_ir("stablehlo")`; it stays as
            it is.
        trip_counts: trip counts of `while` loops without a constant bound, by a piece of the
            loop's name stack or its source line (`"file.py:12"`). A loop that is not found is
            counted once, and its collectives say so in `counted_once`.
        loops: the same, as the program has it that was lowered (`loop_trips.loop_trips`).

    A function's collectives are counted at each call, those of all branches of a `cond` once.
    """
    module = module_or_lowered
    if hasattr(module, "compiler_ir"):
        module = module.compiler_ir("stablehlo")
    explicit = compat.with_explicit_collectives(module)
    return read_collectives(explicit, trip_counts=trip_counts, loops=loops)


def read_collectives(
    explicit: Any,
    *,
    trip_counts: Mapping[str, int] | None = None,
    loops: Sequence[LoopTrips] = (),
) -> list[Collective]:
    """The same of a module in which Shardy has made every collective an operation already."""
    return _Reader(dict(trip_counts or {}), LoopsOfModule(loops)).read(explicit)


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

    def __init__(self, trip_counts: dict[str, int], loops: LoopsOfModule) -> None:
        self.trip_counts, self.loops = trip_counts, loops
        self.mesh_axes: dict[str, tuple[tuple[str, int], ...]] = {}
        self.layouts: dict[Any, tuple[tuple[tuple[str, int], ...], tuple[tuple[Axis, ...], ...]]]
        self.layouts = {}
        self.functions: dict[str, _Function] = {}
        self.found: list[Collective] = []

    def read(self, module: Any) -> list[Collective]:
        bodies: dict[str, Any] = {}
        for operation in operations(module.operation):
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
            if name == "stablehlo.collective_permute":
                axes = sent_over(operation, self._axes())
                events.append(self._sent("collective_permute", axes, operation, count, unknown))
                continue
            if is_ragged_exchange(operation):
                axes = exchanged_over(operation, self._axes())
                events.append(self._sent("all_to_all", axes, operation, count, unknown))
                continue
            if name == "func.call":
                scope, line = where(operation)
                callee = str(operation.attributes["callee"]).lstrip("@").strip('"')
                operands, results = tuple(operation.operands), tuple(operation.results)
                call = _Call(callee, operands, results, scope, line, count, unknown)
                events.append(call)
                continue
            if name == "stablehlo.reduce" and len(operation.results) > 1:
                events += self._reduction(operation, count, unknown)
            inner, once = count, unknown
            if name == "stablehlo.while":
                trips, text = self._trips(operation)
                inner, once = (count, (*unknown, text)) if trips is None else (count * trips, once)
            for region in operation.regions:
                for nested in region.blocks:
                    self._events(nested, inner, once, events)

    def _trips(self, loop: Any) -> tuple[int | None, str]:
        scope, line = where(loop)
        if ROUNDS in scope:
            return 1, scope  # where groups are even
        for key, trips in self.trip_counts.items():
            if key in scope or key == line:
                return trips, scope
        trips = constant_trips(loop)
        if trips is None:
            trips = self.loops.trips(scope, line)
        return trips, f"{scope} {line}".strip() or "a while loop"

    def _layout(
        self, sharding: Any
    ) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[Axis, ...], ...]]:
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
            axes = permuted(before, after, sizes)
        else:
            axes = tuple(axes_in(str(attributes[_AXES_ATTRIBUTE[kind]])))
        type_text = result.type
        shape = tuple(type_text.shape)
        dtype, bits = element_type(str(type_text.element_type))
        local = [
            -(-size // math.prod(axis_size(axis, sizes) for axis in dimension))
            for size, dimension in zip(shape, after, strict=True)
        ]
        elements = math.prod(local)
        if kind == "reduce_scatter":
            elements *= math.prod(axis_size(axis, sizes) for axis in axes)
        scope, line = where(operation)
        template = Collective(
            kind=kind,
            axes=printed_axes(axes, sizes),
            bytes=-(-elements * bits // 8),
            count=count,
            scope=scope,
            line=line,
            shape=shape,
            dtype=dtype,
            counted_once=unknown,
        )
        return _Found(template, operand, result, used_once(operand))

    def _axes(self) -> dict[str, int]:
        """The axes of the module's mesh, of which it has one."""
        (mesh_axes,) = set(self.mesh_axes.values())
        return dict(mesh_axes)

    def _sent(
        self,
        kind: str,
        axes: tuple[str, ...],
        operation: Any,
        count: int,
        unknown: tuple[str, ...],
    ) -> _Found:
        """A collective within a `shard_map` over the module's mesh."""
        operand, result = operation.operands[0], operation.results[0]
        shape = tuple(operand.type.shape)
        dtype, bits = element_type(str(operand.type.element_type))
        size = -(-math.prod(shape) * bits // 8)
        scope, line = where(operation)
        template = Collective(kind, axes, size, count, scope, line, shape, dtype, unknown)
        return _Found(template, operand, result, used_once(operand))

    def _reduction(self, operation: Any, count: int, unknown: tuple[str, ...]) -> Iterator[_Found]:
        """The `all_reduce`s of a reduction with several results, where Shardy wrote none.

        Shardy of jaxlib 0.12 leaves them to the partitioner.
        """
        users = [use.owner.name for result in operation.results for use in result.uses]
        operand = operation.operands[0]
        sharding = compat.shardy_sharding_of(operand)
        if sharding is None or "sdy.all_reduce" in users:
            return
        mesh_axes, before = self._layout(sharding)
        sizes = dict(mesh_axes)
        reduced = compat.integers(operation.attributes["dimensions"])
        axes = tuple(axis for dimension in reduced for axis in before[dimension])
        if not axes:
            return
        scope, line = where(operation)
        for result in operation.results:
            after = compat.shardy_sharding_of(result)
            layout = ((),) * len(result.type.shape) if after is None else self._layout(after)[1]
            local = [
                -(-size // math.prod(axis_size(axis, sizes) for axis in dimension))
                for size, dimension in zip(result.type.shape, layout, strict=True)
            ]
            dtype, bits = element_type(str(result.type.element_type))
            template = Collective(
                kind="all_reduce",
                axes=printed_axes(axes, sizes),
                bytes=-(-math.prod(local) * bits // 8),
                count=count,
                scope=scope,
                line=line,
                shape=tuple(result.type.shape),
                dtype=dtype,
                counted_once=unknown,
            )
            yield _Found(template, operand, result, used_once(operand))

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
                        scope=joined_scope(scope, template.scope),
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
                    inner[argument] = (token, single and used_once(operand))
            returned = self._expand(
                event.callee,
                inner,
                scope=joined_scope(scope, event.scope),
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
            outcome.append(None if token is None else (token, single and used_once(value)))
        return outcome
