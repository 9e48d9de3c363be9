"""Bodies of `scan`, `while` and `cond`: traced on their own, and put back where they were.

What enters a region is constrained inside of it, and what leaves it on both sides of its edge. So
nothing that propagation decides crosses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from autoshard import compat
from autoshard.lower.walk import Walk
from autoshard.program.flatten import op_count
from autoshard.program.trace import Op


class Regions(Walk):
    """The walk into regions."""

    def _scan(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        params = equation.params
        closed = params["jaxpr"]
        consts, carries = compat.scan_counts(params)
        kinds = [
            "enter" if k < consts else "carry" if k < consts + carries else "scan_slice"
            for k in range(len(operands))
        ]
        ends = ["yield" if k < carries else "scan_stack" for k in range(len(equation.outvars))]
        ops, outer = self._enter(kinds, operands)

        def body(*arrays: Any) -> list[Any]:
            self._start_body(ops, arrays)
            values = [op.outputs[0] for op in ops]
            inner = [self.arrays[value] for value in values]
            return self._finish_body(ends, self._walk(closed.jaxpr, closed.consts, inner, values))

        new = self._trace_body(body, closed.in_avals, outer)
        results = compat.bind_equation(equation, outer, jaxpr=new)
        return self._leave(self.cursor - len(ends), results)

    def _while(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        params = equation.params
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        kinds = ["enter" if k < n_cond + n_body else "carry" for k in range(len(operands))]
        ops, outer = self._enter(kinds, operands)
        carried = ops[n_cond + n_body :]

        def run(closed: Any, chosen: Sequence[Op], ends: Sequence[str]) -> Callable[..., list[Any]]:
            def function(*arrays: Any) -> list[Any]:
                self._start_body(chosen, arrays)
                values = [op.outputs[0] for op in chosen]
                inner = [self.arrays[value] for value in values]
                results = self._walk(closed.jaxpr, closed.consts, inner, values)
                return self._finish_body(ends, results) if ends else [a for a, _ in results]

            return function

        given = [*outer[:n_cond], *outer[n_cond + n_body :]]
        new_cond = self._trace_body(run(cond, [*ops[:n_cond], *carried], []), cond.in_avals, given)
        ends = ["yield"] * len(carried)
        chosen = [*ops[n_cond : n_cond + n_body], *carried]
        given = outer[n_cond:]
        new_body = self._trace_body(run(body, chosen, ends), body.in_avals, given)
        results = compat.bind_equation(equation, outer, cond_jaxpr=new_cond, body_jaxpr=new_body)
        return self._leave(self.cursor - len(ends), results)

    def _cond(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """Branches may read one value in different layouts: each has operands of its own."""
        bodies = equation.params["branches"]
        inside = sum(len(operands) - 1 + op_count(body.jaxpr) for body in bodies)
        first = self.cursor + inside
        joins = self.program.ops[first : first + len(equation.outvars)]
        own, outer = [], []
        for number, closed in enumerate(bodies):
            ops, read = self._enter(["enter"] * (len(operands) - 1), operands[1:])
            outer += read

            def function(
                *arrays: Any, number: int = number, closed: Any = closed, ops: Any = ops
            ) -> list[Any]:
                self._start_body(ops, arrays)
                values = [op.outputs[0] for op in ops]
                inner = [self.arrays[value] for value in values]
                results = self._walk(closed.jaxpr, closed.consts, inner, values)
                return [
                    self._settled(op, self._read(op, number, array), number)
                    for op, (array, _) in zip(joins, results, strict=True)
                ]

            # A branch's ops come before the boundary ops of the next one: trace it now.
            own.append(self._trace_body(function, closed.in_avals, read))
        shapes = [compat.shape_struct(aval) for closed in own for aval in closed.in_avals]
        count = len(operands) - 1
        branches = []
        for number, closed in enumerate(own):

            def branch(*arrays: Any, number: int = number, closed: Any = closed) -> list[Any]:
                return jaxpr_as_fun(closed)(*arrays[number * count : (number + 1) * count])

            branches.append(jax.make_jaxpr(branch)(*shapes))
        for _ in joins:
            self._next("join")
        results = compat.bind_equation(equation, [operands[0][0], *outer], branches=tuple(branches))
        return self._leave(first, results)

    def _enter(self, kinds: Sequence[str], operands: list[tuple[Any, int]]) -> tuple[list, list]:
        ops = [self._next(kind) for kind in kinds]
        outer = [self._read(op, 0, array) for op, (array, _) in zip(ops, operands, strict=True)]
        return ops, outer

    def _trace_body(
        self, body: Callable[..., list[Any]], avals: Sequence[Any], arrays: Sequence[Any]
    ) -> Any:
        """The closed jaxpr of a region's body, traced once on its own.

        `arrays` are what the region is given; a scanned one has a dimension in front of its aval's.
        """
        saved, copies = self.arrays, self.copies
        self.arrays, self.copies = {}, {}
        shapes = [
            compat.shape_struct(aval, array.shape[array.ndim - aval.ndim :])
            for aval, array in zip(avals, map(jnp.asarray, arrays), strict=True)
        ]
        closed = jax.make_jaxpr(body)(*shapes)
        self.arrays, self.copies = saved, copies
        return closed

    def _start_body(self, ops: Sequence[Op], arrays: Sequence[Any]) -> None:
        made: dict[int, Any] = {}
        for op, array in zip(ops, arrays, strict=True):
            value = op.outputs[0]
            stored = self.decisions.stored[value]
            if stored is not None:
                array = self._constrain(array, stored)
                moved = self.decisions.copy[value] is not None
                if op.primitive == "enter" and moved and compat.loops_are_inlined():
                    # Shardy lays what a loop hands on to its next turn as the last constraint in
                    # a chain says. This one is to be the last, and the whole array stays whole for
                    # who reads it so: a barrier keeps what stands before and behind it apart.
                    array = self._constrain(jax.lax.optimization_barrier(array), stored)
                self.arrays[value] = array
                continue
            again = self._again(op.inputs[0], made) if op.primitive == "enter" else None
            if again is None:
                self.arrays[value] = self._fix(value, array)
            else:
                self.arrays[value] = again
                self.recipes[value] = self.recipes[op.inputs[0]]

    def _finish_body(self, kinds: Sequence[str], results: list[tuple[Any, int]]) -> list[Any]:
        arrays = []
        for kind, (array, _) in zip(kinds, results, strict=True):
            op = self._next(kind)
            arrays.append(self._settled(op, self._read(op, 0, array)))
        return arrays

    def _settled(self, op: Op, array: Any, position: int = 0) -> Any:
        """A region's result, inside the region, in the layout that its consumer expects."""
        if self.decisions.assignment[op.index] is None or jnp.ndim(array) == 0:
            return array
        reads = self.chosen(op).reads[0][0]
        return self._constrain(array, tuple(reads.tolist()))

    def _leave(self, first: int, results: Sequence[Any]) -> list[tuple[Any, int]]:
        """Constrain a region's results outside of it; their boundary ops start at `first`."""
        out = []
        for k, array in enumerate(results):
            value = self.program.ops[first + k].outputs[0]
            stored = self.decisions.stored[value]
            self.arrays[value] = array if stored is None else self._constrain(array, stored)
            out.append((self.arrays[value], value))
        return out
