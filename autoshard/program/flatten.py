"""One walk over a closed jaxpr that lays it out flat.

Calls are inlined; the bodies of `scan`, `while` and `cond` stand in place between boundary ops. An
`optimization_barrier` is one op for each of its arrays: their layouts have nothing to do with each
other. Arrays of no elements (`associative_scan` makes such) are free, and nobody reads them. The
order of this walk numbers the ops of a program, and lowering walks in the same order:
see `autoshard.lower.walk`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from autoshard import compat
from autoshard.program.as_run.loops import constant_trips
from autoshard.program.boundary import boundary_rule
from autoshard.program.flops import equation_flops, work_of_kernel
from autoshard.program.graph import Region, Value
from autoshard.program.kernels.scalars import Array
from autoshard.program.place import Place
from autoshard.program.ragged import groups_of
from autoshard.program.trip_counts import TripCounts, WhileTrips
from autoshard.program.vocabulary import BARRIER, FREE_PRIMITIVES, INLINED

LOOKED_INTO = 2**20
"""Bytes of a constant up to which kernels that read it are priced by what it holds."""
INTEGERS = tuple(map(np.dtype, ("int8", "uint8", "int16", "int32", "bool")))


class Flattener:
    """One walk over a closed jaxpr, recording values and ops in program order."""

    def __init__(self, trip_counts: TripCounts) -> None:
        self.values: list[Value] = []
        self.ops: list[dict[str, Any]] = []
        self.equations: list[Any] = []
        self.regions: list[Region] = []
        self.carries: list[tuple[int, int]] = []
        self.branches: list[list[int]] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.constant_bytes = 0
        self.constants: dict[int, Array] = {}
        self._constants_seen: set[int] = set()
        self.while_trips = WhileTrips(trip_counts)

    def run(self, closed: Any, in_paths: Sequence[str], out_paths: Sequence[str]) -> None:
        self._open_region(-1, 1, "step")
        jaxpr = closed.jaxpr
        for var, path in zip(jaxpr.invars, in_paths, strict=True):
            self.inputs.append(self._value(var.aval, -1, 1, path=path))
        arguments = list(self.inputs)
        place = Place(region=0, trips=1, scope="", backward=False, recomputed=False)
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
        host = compat.in_host(aval)
        self.values.append(Value(index, shape, dtype, itemsize, producer, trips, path, free, host))
        return index

    def _constant(self, constant: Any, trips: int) -> int:
        aval = jax.typeof(constant)
        index = self._value(aval, -1, trips, free=True)
        if id(constant) not in self._constants_seen:
            self._constants_seen.add(id(constant))
            self.constant_bytes += self.values[index].bytes
        if self.values[index].bytes <= LOOKED_INTO and aval.dtype in INTEGERS:
            self.constants[index] = np.asarray(constant)
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
        place: Place,
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
                "rule": boundary_rule(shapes, shape),
                "scope": place.scope,
                "line": line,
                "backward": place.backward,
                "recomputed": place.recomputed,
                "trips": place.trips,
                "region": place.region,
                "flops": 0.0,
                "boundary": kind != BARRIER,
            }
        )
        self.equations.append(None)
        if kind == "enter" and inputs[0] in self.constants:
            self.constants[output] = self.constants[inputs[0]]
        return output

    # -- the walk ------------------------------------------------------------------------

    def _walk(
        self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[int], place: Place
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
            elif name == BARRIER:
                results = [
                    self._boundary(name, [i], var.aval, inside, inside.line, may_free=False)
                    for i, var in zip(operands, equation.outvars, strict=True)
                ]
            else:
                results = self._equation(equation, operands, inside)
            for var, result in zip(equation.outvars, results, strict=True):
                environment[var] = result
        return [
            i if i >= 0 else self._literal(atom, place)
            for i, atom in ((read(atom), atom) for atom in jaxpr.outvars)
        ]

    def _literal(self, atom: Any, place: Place) -> int:
        return self._value(atom.aval, -1, place.trips, free=True)

    def _equation(self, equation: Any, operands: Sequence[int], place: Place) -> list[int]:
        name = name_of_op(equation)
        empty = makes_nothing(equation)
        # What holds no elements is not read: it may lie anywhere.
        operands = [
            -1 if empty or has_no_elements(atom.aval) else i
            for i, atom in zip(operands, equation.invars, strict=True)
        ]
        free = empty or (
            name in FREE_PRIMITIVES and all(i < 0 or self.values[i].free for i in operands)
        )
        index = len(self.ops)
        outputs = [
            self._value(v.aval, index, place.trips, free=free or has_no_elements(v.aval))
            for v in equation.outvars
        ]
        if name == "broadcast_in_dim" and (constant := self.constants.get(operands[0])) is not None:
            self.constants[outputs[0]] = _broadcast(equation, constant)
        kernel = work_of_kernel(equation, [self.constants.get(i) for i in operands])
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
                "recomputed": place.recomputed,
                "trips": place.trips,
                "region": place.region,
                "flops": equation_flops(equation) if kernel is None else kernel.flops,
                "groups": groups_of(equation),
                "kernel": kernel,
                "literal_shapes": tuple(
                    tuple(getattr(v.aval, "shape", ())) for v in equation.invars
                ),
            }
        )
        self.equations.append(equation)
        return outputs

    def _scan(self, equation: Any, operands: Sequence[int], place: Place) -> list[int]:
        params = equation.params
        body = params["jaxpr"]
        consts, carries = compat.scan_counts(params)
        length = params["length"]
        region = self._open_region(place.region, place.trips * length, "scan")
        inside = place.within(region, place.trips * length)
        kinds = ["enter"] * consts + ["carry"] * carries
        kinds += ["scan_slice"] * (len(operands) - len(kinds))
        arguments = self._enter_loop(kinds, operands, body.jaxpr.invars, place, inside)
        results = self._walk(body.jaxpr, body.consts, arguments, inside)
        kinds = ["yield"] * carries + ["scan_stack"] * (len(results) - carries)
        carried = arguments[consts : consts + carries]
        outputs = self._leave_loop(kinds, results, equation.outvars, carried, place, inside)
        self._close_region(region)
        return outputs

    def _enter_loop(
        self,
        kinds: Sequence[str],
        operands: Sequence[int],
        variables: Sequence[Any],
        place: Place,
        inside: Place,
    ) -> list[int]:
        """The boundary ops at a loop's begin; all but slices happen once, before the loop."""
        entry = place.within(inside.region, place.trips)
        return [
            self._boundary(
                kind,
                [i if i >= 0 else self._literal(var, place)],
                var.aval,
                inside if kind == "scan_slice" else entry,
                place.line,
                value_trips=inside.trips,
                may_free=kind != "carry",
            )
            for kind, i, var in zip(kinds, operands, variables, strict=True)
        ]

    def _leave_loop(
        self,
        kinds: Sequence[str],
        results: Sequence[int],
        variables: Sequence[Any],
        carried: Sequence[int],
        place: Place,
        inside: Place,
    ) -> list[int]:
        """The boundary ops at a loop's end; the first ones pair with the carries `carried`."""
        outputs = [
            self._boundary(
                kind,
                [result],
                var.aval,
                inside,
                place.line,
                value_trips=place.trips,
                may_free=False,
            )
            for kind, result, var in zip(kinds, results, variables, strict=True)
        ]
        self.carries += zip(carried, outputs, strict=False)
        return outputs

    def _while(self, equation: Any, operands: Sequence[int], place: Place) -> list[int]:
        params = equation.params
        length = self.while_trips.of_next(place, constant_trips(equation))
        cond_consts, body_consts = params["cond_nconsts"], params["body_nconsts"]
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        region = self._open_region(place.region, place.trips * length, "while")
        inside = place.within(region, place.trips * length)
        variables = (
            cond.jaxpr.invars[:cond_consts]
            + body.jaxpr.invars[:body_consts]
            + body.jaxpr.invars[body_consts:]
        )
        kinds = ["enter"] * (cond_consts + body_consts)
        kinds += ["carry"] * (len(operands) - len(kinds))
        arguments = self._enter_loop(kinds, operands, variables, place, inside)
        carried = arguments[cond_consts + body_consts :]
        self._walk(cond.jaxpr, cond.consts, arguments[:cond_consts] + carried, inside)
        results = self._walk(
            body.jaxpr,
            body.consts,
            arguments[cond_consts : cond_consts + body_consts] + carried,
            inside,
        )
        kinds = ["yield"] * len(results)
        outputs = self._leave_loop(kinds, results, equation.outvars, carried, place, inside)
        self._close_region(region)
        return outputs

    def _cond(self, equation: Any, operands: Sequence[int], place: Place) -> list[int]:
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


def name_of_op(equation: Any) -> str:
    """What an op is called by: its primitive, or the memory that a `device_put` puts it into."""
    if compat.is_transfer(equation):
        return "to_host" if compat.in_host(equation.outvars[0].aval) else "from_host"
    return equation.primitive.name


def has_no_elements(aval: Any) -> bool:
    """Whether one of the dimensions of an array is 0."""
    return 0 in compat.array_facts(aval)[0]


def makes_nothing(equation: Any) -> bool:
    """Whether no result of an equation holds elements, so that it reads none and does nothing."""
    results = [var.aval for var in equation.outvars]
    return bool(results) and not equation.effects and all(map(has_no_elements, results))


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
        elif name == BARRIER:
            total += len(equation.outvars)
        else:
            total += 1
    return total


def _broadcast(equation: Any, constant: Array) -> Array:
    """A constant as a view of a larger shape."""
    shape, kept = equation.params["shape"], equation.params["broadcast_dimensions"]
    return np.broadcast_to(np.expand_dims(constant, [*{*range(len(shape))} - {*kept}]), shape)
