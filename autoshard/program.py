"""A traced step as a flat graph of values and ops, ready for decisions.

`trace` turns a function into its jaxpr and lays it out flat: calls (`jit`, `custom_jvp`,
`custom_vjp`, `checkpoint`) are inlined, and the bodies of `scan`, `while` and `cond` stand in
place, between *boundary ops* that carry values across the edge of the region:

    enter   a closed-over value becomes visible inside the region (no data is moved)
    carry   the initial value of a loop's carry; the carry has one layout at entry and at exit
    unstack one iteration's part of a scanned input;  stack: its inverse for a scanned output
    yield   the carry at the end of an iteration;     join: one result out of `cond`'s branches
    return  a result of the step, as it is handed back to the caller

Every op knows its scope, its source line, whether it belongs to the backward pass and how often
it runs (`trips`). Values that depend on constants and iotas alone are *free*: they are computed
wherever they are needed, in whatever layout, so they tie nothing together.
"""

from __future__ import annotations

import functools
import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from autoshard import compat
from autoshard.cost.flops import equation_flops
from autoshard.layout import short_dtype
from autoshard.rules import Factor, FactorKind, Rule, UserRule, rules_for

INLINED = frozenset(
    {
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "remat",
        "remat2",
        "checkpoint",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
    }
)
FREE_PRIMITIVES = frozenset(
    [
        "iota",
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "expand_dims",
        "transpose",
        "rev",
        "slice",
        "convert_element_type",
        "concatenate",
        "pad",
        "add",
        "sub",
        "mul",
        "div",
        "rem",
        "neg",
        "sign",
        "floor",
        "ceil",
        "max",
        "min",
        "pow",
        "integer_pow",
        "exp",
        "log",
        "sin",
        "cos",
        "tanh",
        "sqrt",
        "rsqrt",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and",
        "or",
        "not",
        "xor",
        "select_n",
        "clamp",
        "copy",
        "stop_gradient",
        "shift_left",
        "shift_right_logical",
        "shift_right_arithmetic",
        "full",
        "log1p",
        "expm1",
        "abs",
        "square",
        "enter",
        "unstack",
        "split",
    ]
)


class TraceError(ValueError):
    """The function cannot be traced, or the program holds something that cannot be planned."""


@dataclass(frozen=True, slots=True)
class Value:
    """One array: `shape`, `dtype`, the op that makes it (-1: an input or a constant)."""

    index: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    producer: int
    trips: int
    path: str = ""
    free: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the whole (unsharded) array."""
        return math.prod(self.shape) * self.itemsize

    def __str__(self) -> str:
        short = short_dtype(self.dtype)
        return f"{short}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Op:
    """One equation or boundary op. `inputs` holds -1 where the operand is a literal."""

    index: int
    primitive: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    rule: Rule
    scope: str
    line: str
    backward: bool
    trips: int
    region: int
    flops: float
    boundary: bool = False
    weight: float = 1.0
    literal_shapes: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.primitive} at {self.scope or '(top)'} ({self.line or 'no source line'})"


@dataclass(frozen=True, slots=True)
class Region:
    """A loop or branch: ops `start <= index < stop`, run `trips` times in all."""

    index: int
    parent: int
    start: int
    stop: int
    trips: int
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A step as a graph; see the module docstring. `ties` pairs positions of inputs and outputs."""

    name: str
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    regions: tuple[Region, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ties: tuple[tuple[int, int], ...]
    carries: tuple[tuple[int, int], ...]
    donated: frozenset[int]
    options: Mapping[str, Any]
    constant_bytes: int
    fingerprint: str
    jaxpr: Any = field(repr=False)
    in_tree: Any = field(repr=False)
    out_tree: Any = field(repr=False)

    @property
    def input_paths(self) -> tuple[str, ...]:
        """Tree path of every flat input, such as `[0]['layers']['wq']`."""
        return tuple(self.values[i].path for i in self.inputs)

    @property
    def output_paths(self) -> tuple[str, ...]:
        """Tree path of every flat output."""
        return tuple(self.values[i].path for i in self.outputs)

    def consumers(self) -> list[list[tuple[int, int]]]:
        """For every value the list of (op index, operand position) that read it."""
        result: list[list[tuple[int, int]]] = [[] for _ in self.values]
        for op in self.ops:
            for position, value in enumerate(op.inputs):
                if value >= 0:
                    result[value].append((op.index, position))
        return result

    def __str__(self) -> str:
        state = len(self.ties)
        size = sum(self.values[i].bytes for i in self.inputs)
        return (
            f"program {self.name}: {len(self.ops)} ops, {len(self.values)} values, "
            f"{len(self.inputs)} inputs ({size / 2**30:.2f} GiB, {state} of them state), "
            f"{len(self.regions) - 1} regions"
        )


def trace(
    fn: Callable[..., Any],
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    trip_counts: int | Sequence[int] | Mapping[str, int] = (),
    user_rules: Mapping[str, UserRule] | None = None,
    name: str | None = None,
) -> Program:
    """Trace `fn(*args)` to a `Program`.

    Args:
      fn: any function that JAX can trace.
      *args: pytrees of arrays or `jax.ShapeDtypeStruct`s; no device and no data is needed.
      donate_argnums: positions of arguments that the step may overwrite (state).
      trip_counts: how often each `while` loop runs: one number for all, a sequence in program
        order, or a mapping from a part of the loop's scope to the number. A loop without one is
        counted once, with a warning.
      user_rules: sharding rules of opaque ops (`shard_map`, Pallas, FFI), by name.
      name: what the program is called in reports (default: the function's name).

    Raises:
      TraceError: `fn` does not trace; the message names the user's source line.
      autoshard.rules.NoRuleError: an op has no sharding rule.
    """
    donate = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    for number in donate:
        if not 0 <= number < len(args):
            raise TraceError(
                f"donate_argnums holds {number}, but the function is given {len(args)} arguments"
            )
    abstract = jax.tree.map(_abstract, args)
    try:
        traced = jax.jit(fn).trace(*abstract)
    except Exception as error:
        where = compat.user_line_of_error(error)
        raise TraceError(
            f"{_name_of(fn)} does not trace{' at ' + where if where else ''}: "
            f"{type(error).__name__}: {error}"
        ) from error
    closed = compat.drop_dead_code(traced.jaxpr)
    in_paths = [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(abstract)
    ]
    out_info = traced.out_info
    out_paths = [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(out_info)
    ]
    graph = _Flattener(trip_counts)
    graph.run(closed, in_paths, out_paths)
    rules = rules_for(
        [equation for equation in graph.equations if equation is not None],
        user_rules=user_rules or {},
    )
    by_op = iter(rules)
    ops = []
    for record, equation in zip(graph.ops, graph.equations, strict=True):
        rule = record["rule"] if equation is None else next(by_op)
        ops.append(Op(**{**record, "rule": rule}))
    donated = frozenset(_flat_positions(abstract, donate))
    ties = _state_ties(abstract, out_info, donate)
    ops = _price_dearest_branch_only(ops, graph.regions, graph.branches)
    values = tuple(graph.values)
    return Program(
        name=name or _name_of(fn),
        values=values,
        ops=tuple(ops),
        regions=tuple(graph.regions),
        inputs=tuple(graph.inputs),
        outputs=tuple(graph.outputs),
        ties=ties,
        carries=tuple(graph.carries),
        donated=donated,
        options=_options(donate, trip_counts),
        constant_bytes=graph.constant_bytes,
        fingerprint=_fingerprint(values, ops),
        jaxpr=closed,
        in_tree=jax.tree.structure(abstract),
        out_tree=jax.tree.structure(out_info),
    )


def _options(
    donate: tuple[int, ...], trip_counts: int | Sequence[int] | Mapping[str, int]
) -> dict[str, Any]:
    """What `trace` was told, in the form in which a plan keeps it."""
    options: dict[str, Any] = {}
    if donate:
        options["donate_argnums"] = list(donate)
    if isinstance(trip_counts, Mapping):
        options["trip_counts"] = dict(trip_counts)
    elif isinstance(trip_counts, int):
        options["trip_counts"] = trip_counts
    elif trip_counts:
        options["trip_counts"] = list(trip_counts)
    return options


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _name_of(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _flat_positions(args: Sequence[Any], chosen: Sequence[int]) -> list[int]:
    positions, start = [], 0
    for number, arg in enumerate(args):
        count = len(jax.tree.leaves(arg))
        if number in chosen:
            positions.extend(range(start, start + count))
        start += count
    return positions


def _state_ties(
    args: Sequence[Any], out: Any, donate: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Pair every leaf of state that comes in with the leaf of the result that replaces it.

    An argument is state when it is donated, or when a subtree of the result has the same
    structure and the same leaves (and holds more than one leaf). Each subtree is used once.
    """

    def leaves(tree: Any) -> list[tuple[tuple[int, ...], Any]]:
        return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]

    candidates: list[tuple[int, Any]] = []  # (first flat position, subtree)

    def subtrees(tree: Any, start: int, depth: int) -> None:
        candidates.append((start, tree))
        if depth == 0:
            return
        children = jax.tree_util.default_registry.flatten_one_level(tree)
        if children is None:
            return
        for child in children[0]:
            subtrees(child, start, depth - 1)
            start += len(jax.tree.leaves(child))

    subtrees(out, 0, 2)
    used: set[int] = set()
    ties: list[tuple[int, int]] = []

    def match(tree: Any, start: int, donated: bool, depth: int) -> None:
        wanted = leaves(tree)
        if not wanted or (not donated and len(wanted) < 2):
            return
        for first, subtree in candidates:
            span = range(first, first + len(wanted))
            if jax.tree.structure(subtree) == jax.tree.structure(tree):
                same = leaves(subtree) == wanted
                if same and used.isdisjoint(span):
                    used.update(span)
                    ties.extend((start + k, first + k) for k in range(len(wanted)))
                    return
        if depth == 0:
            return
        children = jax.tree_util.default_registry.flatten_one_level(tree)
        if children is not None:
            for child in children[0]:
                match(child, start, donated, depth - 1)
                start += len(jax.tree.leaves(child))

    start = 0
    for number, arg in enumerate(args):
        match(arg, start, number in donate, 2)
        start += len(jax.tree.leaves(arg))
    return tuple(sorted(ties))


def _fingerprint(values: Sequence[Value], ops: Sequence[Op]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(f"{value.shape}{value.dtype}{value.producer};".encode())
    for op in ops:
        digest.update(f"{op.primitive}{op.inputs}{op.outputs}{op.trips}{op.rule};".encode())
    return digest.hexdigest()[:16]


def _price_dearest_branch_only(
    ops: list[Op], regions: Sequence[Region], branches: Sequence[Sequence[int]]
) -> list[Op]:
    """Give weight 0 to the branches of a `cond` that cost less than its dearest one."""
    from dataclasses import replace

    for group in branches:
        work = []
        for number in group:
            region = regions[number]
            inside = ops[region.start : region.stop]
            work.append(sum(op.flops * op.trips for op in inside))
        dearest = group[int(np.argmax(work))]
        for number in group:
            if number != dearest:
                region = regions[number]
                for k in range(region.start, region.stop):
                    ops[k] = replace(ops[k], weight=0.0)
    return ops


class _Flattener:
    """One walk over a closed jaxpr, recording values and ops in program order."""

    def __init__(self, trip_counts: int | Sequence[int] | Mapping[str, int]) -> None:
        self.values: list[Value] = []
        self.ops: list[dict[str, Any]] = []
        self.equations: list[Any] = []
        self.regions: list[Region] = []
        self.carries: list[tuple[int, int]] = []
        self.branches: list[list[int]] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.constant_bytes = 0
        self._constants_seen: set[int] = set()
        self._trip_counts = trip_counts
        self._whiles_seen = 0

    def run(self, closed: Any, in_paths: Sequence[str], out_paths: Sequence[str]) -> None:
        self._open_region(-1, 1, "step")
        jaxpr = closed.jaxpr
        for var, path in zip(jaxpr.invars, in_paths, strict=True):
            self.inputs.append(self._value(var.aval, -1, 1, path=path))
        arguments = list(self.inputs)
        place = _Place(region=0, trips=1, scope="", backward=False)
        results = self._walk(jaxpr, closed.consts, arguments, place)
        for var, result, path in zip(jaxpr.outvars, results, out_paths, strict=True):
            self.outputs.append(
                self._boundary("return", [result], var.aval, place, "", path=path, may_free=False)
            )
        self._close_region(0)

    # -- recording -----------------------------------------------------------------------

    def _value(
        self, aval: Any, producer: int, trips: int, *, path: str = "", free: bool = False
    ) -> int:
        shape, dtype, itemsize = compat.array_facts(aval)
        index = len(self.values)
        self.values.append(Value(index, shape, dtype, itemsize, producer, trips, path, free))
        return index

    def _constant(self, constant: Any, trips: int) -> int:
        aval = jax.typeof(constant)
        index = self._value(aval, -1, trips, free=True)
        if id(constant) not in self._constants_seen:
            self._constants_seen.add(id(constant))
            self.constant_bytes += self.values[index].bytes
        return index

    def _open_region(self, parent: int, trips: int, kind: str) -> int:
        index = len(self.regions)
        self.regions.append(Region(index, parent, len(self.ops), -1, trips, kind))
        return index

    def _close_region(self, index: int) -> None:
        region = self.regions[index]
        self.regions[index] = Region(
            index, region.parent, region.start, len(self.ops), region.trips, region.kind
        )

    def _boundary(
        self,
        kind: str,
        inputs: Sequence[int],
        aval: Any,
        place: _Place,
        line: str,
        *,
        value_trips: int | None = None,
        path: str = "",
        may_free: bool = True,
    ) -> int:
        shape, _, _ = compat.array_facts(aval)
        free = may_free and all(i < 0 or self.values[i].free for i in inputs)
        index = len(self.ops)
        trips = place.trips if value_trips is None else value_trips
        output = self._value(aval, index, trips, path=path, free=free)
        shapes = tuple(self.values[i].shape if i >= 0 else shape for i in inputs)
        self.ops.append(
            {
                "index": index,
                "primitive": kind,
                "inputs": tuple(inputs),
                "outputs": (output,),
                "rule": _boundary_rule(shapes, shape),
                "scope": place.scope,
                "line": line,
                "backward": place.backward,
                "trips": place.trips,
                "region": place.region,
                "flops": 0.0,
                "boundary": True,
            }
        )
        self.equations.append(None)
        return output

    # -- the walk ------------------------------------------------------------------------

    def _walk(
        self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[int], place: _Place
    ) -> list[int]:
        environment: dict[Any, int] = {}
        for var, constant in zip(jaxpr.constvars, consts, strict=True):
            environment[var] = self._constant(constant, place.trips)
        environment.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> int:
            return -1 if compat.is_literal(atom) else environment[atom]

        for equation in jaxpr.eqns:
            inside = place.at(equation)
            operands = [read(atom) for atom in equation.invars]
            name = equation.primitive.name
            if name in INLINED:
                body, body_consts = compat.called_jaxpr(equation)
                operands = [
                    i if i >= 0 else self._literal(atom, inside)
                    for i, atom in zip(operands, equation.invars, strict=True)
                ]
                results = self._walk(body, body_consts, operands, inside)
            elif name == "scan":
                results = self._scan(equation, operands, inside)
            elif name == "while":
                results = self._while(equation, operands, inside)
            elif name == "cond":
                results = self._cond(equation, operands, inside)
            else:
                results = self._equation(equation, operands, inside)
            for var, result in zip(equation.outvars, results, strict=True):
                environment[var] = result
        return [
            i if i >= 0 else self._literal(atom, place)
            for i, atom in ((read(atom), atom) for atom in jaxpr.outvars)
        ]

    def _literal(self, atom: Any, place: _Place) -> int:
        return self._value(atom.aval, -1, place.trips, free=True)

    def _equation(self, equation: Any, operands: Sequence[int], place: _Place) -> list[int]:
        name = equation.primitive.name
        free = name in FREE_PRIMITIVES and all(i < 0 or self.values[i].free for i in operands)
        index = len(self.ops)
        outputs = [self._value(v.aval, index, place.trips, free=free) for v in equation.outvars]
        self.ops.append(
            {
                "index": index,
                "primitive": name,
                "inputs": tuple(operands),
                "outputs": tuple(outputs),
                "rule": None,
                "scope": place.scope,
                "line": place.line,
                "backward": place.backward,
                "trips": place.trips,
                "region": place.region,
                "flops": equation_flops(equation),
                "literal_shapes": tuple(
                    tuple(getattr(v.aval, "shape", ())) for v in equation.invars
                ),
            }
        )
        self.equations.append(equation)
        return outputs

    def _scan(self, equation: Any, operands: Sequence[int], place: _Place) -> list[int]:
        params = equation.params
        body = params["jaxpr"]
        consts, carries = params["num_consts"], params["num_carry"]
        length = params["length"]
        region = self._open_region(place.region, place.trips * length, "scan")
        inside = place.within(region, place.trips * length)
        arguments = []
        for k, (i, var) in enumerate(zip(operands, body.jaxpr.invars, strict=True)):
            kind = "enter" if k < consts else "carry" if k < consts + carries else "unstack"
            loops = inside if kind == "unstack" else place.within(region, place.trips)
            arguments.append(
                self._boundary(
                    kind,
                    [i if i >= 0 else self._literal(var, place)],
                    var.aval,
                    loops,
                    place.line,
                    value_trips=inside.trips,
                    may_free=kind != "carry",
                )
            )
        results = self._walk(body.jaxpr, body.consts, arguments, inside)
        outputs = []
        for k, (result, var) in enumerate(zip(results, equation.outvars, strict=True)):
            kind = "yield" if k < carries else "stack"
            outputs.append(
                self._boundary(
                    kind,
                    [result],
                    var.aval,
                    inside,
                    place.line,
                    value_trips=place.trips,
                    may_free=False,
                )
            )
            if k < carries:
                self.carries.append((arguments[consts + k], outputs[-1]))
        self._close_region(region)
        return outputs

    def _while(self, equation: Any, operands: Sequence[int], place: _Place) -> list[int]:
        params = equation.params
        length = self._while_trips(place)
        cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        region = self._open_region(place.region, place.trips * length, "while")
        inside = place.within(region, place.trips * length)
        entry = place.within(region, place.trips)
        variables = (
            cond.jaxpr.invars[:cond_consts]
            + body.jaxpr.invars[:body_consts]
            + body.jaxpr.invars[body_consts:]
        )
        arguments = []
        for k, (i, var) in enumerate(zip(operands, variables, strict=True)):
            kind = "enter" if k < cond_consts + body_consts else "carry"
            arguments.append(
                self._boundary(
                    kind,
                    [i if i >= 0 else self._literal(var, place)],
                    var.aval,
                    entry,
                    place.line,
                    value_trips=inside.trips,
                    may_free=kind != "carry",
                )
            )
        carried = arguments[cond_consts + body_consts :]
        self._walk(cond.jaxpr, cond.consts, arguments[:cond_consts] + carried, inside)
        results = self._walk(
            body.jaxpr,
            body.consts,
            arguments[cond_consts : cond_consts + body_consts] + carried,
            inside,
        )
        outputs = []
        for argument, result, var in zip(carried, results, equation.outvars, strict=True):
            outputs.append(
                self._boundary(
                    "yield",
                    [result],
                    var.aval,
                    inside,
                    place.line,
                    value_trips=place.trips,
                    may_free=False,
                )
            )
            self.carries.append((argument, outputs[-1]))
        self._close_region(region)
        return outputs

    def _cond(self, equation: Any, operands: Sequence[int], place: _Place) -> list[int]:
        branches = equation.params["branches"]
        group, results = [], []
        for branch in branches:
            region = self._open_region(place.region, place.trips, "branch")
            inside = place.within(region, place.trips)
            atoms = [atom for equation in branch.jaxpr.eqns for atom in equation.invars]
            used = {a for a in (*atoms, *branch.jaxpr.outvars) if not compat.is_literal(a)}
            arguments = [
                self._boundary(
                    "enter",
                    # What this branch does not use, it does not read: that may lie anywhere.
                    [i if i >= 0 and var in used else self._literal(var, place)],
                    var.aval,
                    inside,
                    place.line,
                )
                for i, var in zip(operands[1:], branch.jaxpr.invars, strict=True)
            ]
            results.append(self._walk(branch.jaxpr, branch.consts, arguments, inside))
            self._close_region(region)
            group.append(region)
        self.branches.append(group)
        return [
            self._boundary(
                "join",
                [result[k] for result in results],
                var.aval,
                place,
                place.line,
                may_free=False,
            )
            for k, var in enumerate(equation.outvars)
        ]

    def _while_trips(self, place: _Place) -> int:
        number = self._whiles_seen
        self._whiles_seen += 1
        given = self._trip_counts
        if isinstance(given, int):
            return given
        if isinstance(given, Mapping):
            for part, count in given.items():
                if part in place.scope:
                    return count
        elif number < len(given):
            return given[number]
        warnings.warn(
            f"while loop {number} at {place.scope or '(top)'} ({place.line}) has no trip count and "
            f"is counted once: pass trip_counts=… with its number of iterations",
            stacklevel=2,
        )
        return 1


def op_count(jaxpr: Any) -> int:
    """How many ops a jaxpr is laid out as, boundary ops of its regions included."""
    total = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name in INLINED:
            total += op_count(compat.called_jaxpr(equation)[0])
        elif name == "scan":
            ends = len(equation.invars) + len(equation.outvars)
            total += ends + op_count(params["jaxpr"].jaxpr)
        elif name == "while":
            bodies = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
            total += len(equation.invars) + len(equation.outvars) + sum(map(op_count, bodies))
        elif name == "cond":
            inside = [len(equation.invars) - 1 + op_count(b.jaxpr) for b in params["branches"]]
            total += sum(inside) + len(equation.outvars)
        else:
            total += 1
    return total


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the walk stands: the region, how often it runs, the scope and the source line."""

    region: int
    trips: int
    scope: str
    backward: bool
    line: str = ""

    def at(self, equation: Any) -> _Place:
        stack = str(equation.source_info.name_stack)
        scope = "/".join(part for part in (self.scope, stack) if part)
        backward = self.backward or "transpose(" in stack or "rematted_computation" in stack
        line = compat.source_line(equation) or self.line
        return _Place(self.region, self.trips, scope, backward, line)

    def within(self, region: int, trips: int) -> _Place:
        return _Place(region, trips, self.scope, self.backward, self.line)


@functools.lru_cache(maxsize=4096)
def _boundary_rule(shapes: tuple[tuple[int, ...], ...], result: tuple[int, ...]) -> Rule:
    """Identity from the trailing dimensions; a leading loop dimension must be replicated."""
    rank = min([len(result), *(len(shape) for shape in shapes)])
    longest = max([len(result), *(len(shape) for shape in shapes)])
    tail = next(shape[len(shape) - rank :] for shape in [result, *shapes] if len(shape) >= rank)
    factors = [Factor(_letter(k), size, FactorKind.PASS, None) for k, size in enumerate(tail)]
    lead: tuple[tuple[int, ...], ...] = ()
    if longest > rank:
        size = next(shape[0] for shape in [result, *shapes] if len(shape) > rank)
        factors.append(Factor(_letter(rank), size, FactorKind.REPLICATE, None))
        lead = ((rank,),)
    body = tuple((k,) for k in range(rank))

    def mapping(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return (lead + body) if len(shape) > rank else body

    return Rule(tuple(factors), tuple(mapping(shape) for shape in shapes), (mapping(result),))


def _letter(k: int) -> str:
    return chr(ord("i") + k) if k < 18 else f"z_{k - 17}"
