"""Run a traced step again with its plan written into it.

The jaxpr is walked in exactly the order in which `autoshard.program` numbered its ops. Every result
is constrained to the layout in which the plan stores it; a partial sum first to the layout in which
the op writes it, so that the step between the two is the planned all-reduce or reduce-scatter;
every resharded copy is made through the states of its planned sequence of collectives. An op's
operands and results then always agree with its strategy, and nothing is left to propagation but
the inner values of an equation, and products of which only the transpose is read
(`autoshard.lower.turned`). Products are computed in the plan's orders
(`autoshard.program.dim_order`).

Free values (of constants and iotas alone) are left to Shardy, which splits them as their readers
need them, but not where they cross the edge of a region: inside they are computed again, and only
what cannot be (a slice of a scanned constant) crosses whole.

A copy that is made anew for the backward pass starts from an `optimization_barrier`, because equal
reshards of one value would be merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec

from autoshard import compat
from autoshard.lower.products import product_in_order
from autoshard.lower.terms import add_up, terms_of_product
from autoshard.lower.turned import turned_products
from autoshard.plan.copies import ANEW, VISIBLE
from autoshard.plan.decisions import Decisions
from autoshard.plan.plan import Plan
from autoshard.plan.strategies_of import ChosenStrategies
from autoshard.program.dim_order import ProductOrder, operand_groups
from autoshard.program.flatten import makes_nothing, op_count
from autoshard.program.layout import UNREDUCED, Layout, local_shape, to_partition_spec
from autoshard.program.readers import Phase, Reader
from autoshard.program.trace import Op, Program
from autoshard.program.vocabulary import BARRIER, INLINED, SCATTERS
from autoshard.xla.facts import analyse

_CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})
_REMAT = frozenset({"remat", "remat2", "checkpoint"})
_DECIDED = frozenset({"sharding_constraint", "shard_alike"})
_INDEXED = frozenset({"gather", *SCATTERS})
_OPAQUE = frozenset({"pallas_call", "shard_map", "ffi_call", "pure_callback", "io_callback"})


class LoweringError(ValueError):
    """A plan that cannot be written down for the compiler."""


Recipe = tuple[Any, list[tuple[Any, int]], int]
"""How a free value is computed: an equation, its operands as (array, value), and which result."""


class Interpreter:
    """One re-trace of a program under decisions; make a new one for every trace."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        mesh: Any,
        readers: tuple[tuple[Reader, ...], ...] | None = None,
    ) -> None:
        self.program = program
        self.decisions: Decisions = plan.decisions
        self.product_orders = plan.product_orders
        self.reshards = {(r.shape, r.itemsize, r.before, r.after): r.states for r in plan.reshards}
        self.mesh = mesh
        self.chosen = ChosenStrategies(plan.decisions, plan.mesh.sizes)
        self.names = plan.mesh.names
        self.arrays: dict[int, Any] = {}
        self.copies: dict[tuple[int, bool], Any] = {}
        self.fixed: set[int] = set()
        self.recipes: dict[int, Recipe] = {}
        self.cursor = 0
        self.readers = analyse(program).readers if readers is None else readers
        self.turned = turned_products(program, self.decisions, self.chosen, self.readers)
        self._phases = {(use.op, use.position): use.phase for uses in self.readers for use in uses}
        self._specs: dict[tuple[Layout, int], NamedSharding] = {}

    def run(self, *flat: Any) -> list[Any]:
        """The step on flat inputs; returns flat outputs."""
        program = self.program
        for value, array in zip(program.inputs, flat, strict=True):
            self.arrays[value] = array
        closed = program.jaxpr
        atoms = self._walk(closed.jaxpr, closed.consts, list(flat), list(program.inputs))
        outputs = []
        for array, _ in atoms:
            op = self._next("return")
            outputs.append(self._read(op, 0, array))
        return outputs

    # -- reading and writing -------------------------------------------------------------

    def _next(self, primitive: str) -> Op:
        op = self.program.ops[self.cursor]
        if op.primitive != primitive:
            raise AssertionError(f"op {self.cursor} is {op.primitive}, the walk met {primitive}")
        self.cursor += 1
        return op

    def _sharding(self, layout: Layout, rank: int) -> NamedSharding:
        key = (layout, rank)
        if key not in self._specs:
            terms = [self.names[axis] for axis, d in enumerate(layout) if d == UNREDUCED]
            spec = to_partition_spec(layout, self.names, rank - len(terms))
            self._specs[key] = NamedSharding(self.mesh, PartitionSpec(*terms, *spec))
        return self._specs[key]

    def _constrain(self, array: Any, layout: Layout) -> Any:
        if array.ndim == 0:
            return array
        return jax.lax.with_sharding_constraint(array, self._sharding(layout, array.ndim))

    def _read(self, op: Op, position: int, literal: Any) -> Any:
        """Operand `position` of `op` in the layout that the op's strategy reads."""
        value = op.inputs[position]
        if value < 0:
            return literal
        array = self.arrays.get(value, literal)
        if self.decisions.assignment[op.index] is None:
            return array
        if self.decisions.stored[value] is None:
            if value not in self.fixed:
                return array
            return self._constrain(array, self._reads(op, position))
        if not self._reads_copy(op, position):
            return array
        phase = self._phases[op.index, position]
        return self._copy(value, array, anew=self._is_anew(value, phase))

    def _reads_copy(self, op: Op, position: int) -> bool:
        value = op.inputs[position]
        copy, phase = self.decisions.copy[value], self._phases[op.index, position]
        if copy is None or not self.decisions.mode[value] & VISIBLE[phase]:
            return False
        return self.decisions.assignment[op.index] is not None and self._reads(op, position) == copy

    def _reads(self, op: Op, position: int) -> Layout:
        strategy = self.chosen(op)
        return tuple(strategy.reads[position][0].tolist())

    def _fix(self, value: int, array: Any) -> Any:
        """A free value that Shardy cannot compute anew for every use: whole, and sliced for each.

        Shardy splits constants and what is computed from them, but not where they cross the edge of
        a region.
        """
        self.fixed.add(value)
        return self._constrain(array, (-1,) * len(self.names))

    def _are_indices(self, op: Op) -> bool:
        """Whether `op` joins free values to indices of several dimensions.

        These Shardy does not compute anew for every use; one that is split, or crosses the edge of
        a region so, would split the gather too.
        """
        return op.primitive == "concatenate" and any(
            self.program.ops[use.op].primitive in _INDEXED and use.position == 1
            for use in self.readers[op.outputs[0]]
        )

    def _again(self, value: int, made: dict[int, Any]) -> Any | None:
        """A free value computed once more, inside of another trace; None where it cannot be.

        `made` holds what was computed there already.
        """
        if value not in made:
            made[value] = None
            if value in self.recipes:
                equation, operands, number = self.recipes[value]
                if makes_nothing(equation):
                    made[value] = _nothing(equation.outvars[number])
                    return made[value]
                arrays = [
                    self._again(v, made) if v >= 0 else None if compat.is_tracer(a) else a
                    for a, v in operands
                ]
                if all(array is not None for array in arrays):
                    made[value] = compat.bind_equation(equation, arrays)[number]
        return made[value]

    def _is_anew(self, value: int, phase: Phase) -> bool:
        return phase is Phase.SECOND and self.decisions.mode[value] == ANEW

    def _copy(self, value: int, array: Any, *, anew: bool) -> Any:
        key = (value, anew)
        if key not in self.copies:
            stored, copy = self.decisions.stored[value], self.decisions.copy[value]
            assert stored is not None
            assert copy is not None
            source = array
            if anew:
                source = self._constrain(jax.lax.optimization_barrier(array), stored)
            record = self.program.values[value]
            for state in self.reshards[record.shape, record.itemsize, stored, copy]:
                source = self._lay_out(source, state)
            self.copies[key] = source
        return self.copies[key]

    def _write(self, op: Op, results: Sequence[Any]) -> list[Any]:
        """Constrain an op's results as planned, and remember them."""
        if self.decisions.assignment[op.index] is None:
            if self._are_indices(op) or not self.fixed.isdisjoint(op.inputs):
                pairs = zip(op.outputs, results, strict=True)
                results = [self._fix(value, array) for value, array in pairs]
            self.arrays.update(zip(op.outputs, results, strict=True))
            return list(results)
        strategy = self.chosen(op)
        constrained = []
        for number, (value, array) in enumerate(zip(op.outputs, results, strict=True)):
            stored = self.decisions.stored[value]
            if stored is not None and hasattr(array, "ndim") and value not in self.turned:
                written = tuple(strategy.written[number][0].tolist())
                terms = array.ndim - len(self.program.values[value].shape)
                if UNREDUCED in stored:
                    written = stored
                elif terms:
                    array = add_up(array, terms)
                array = self._constrain(array, written)
                if stored != written:
                    array = self._constrain(array, stored)
            self.arrays[value] = array
            constrained.append(array)
        return constrained

    # -- the walk ------------------------------------------------------------------------

    def _walk(
        self, jaxpr: Any, consts: Sequence[Any], arrays: Sequence[Any], values: Sequence[int]
    ) -> list[tuple[Any, int]]:
        """Interpret `jaxpr`; returns for every output its array and its value's index."""
        environment: dict[Any, tuple[Any, int]] = {}
        for var, constant in zip(jaxpr.constvars, consts, strict=True):
            environment[var] = (constant, -1)
        for var, array, value in zip(jaxpr.invars, arrays, values, strict=True):
            environment[var] = (array, value)

        def read(atom: Any) -> tuple[Any, int]:
            return (atom.val, -1) if compat.is_literal(atom) else environment[atom]

        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            with compat.equation_context(equation):
                results = self._equation(equation, operands)
            for var, result in zip(equation.outvars, results, strict=True):
                environment[var] = result
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        name = equation.primitive.name
        if name in _REMAT:
            return self._remat(equation, operands)
        if name in _CUSTOM:
            return self._custom(equation, operands)
        if name in INLINED:
            return self._call(equation, operands)
        if name == "scan":
            return self._scan(equation, operands)
        if name == "while":
            return self._while(equation, operands)
        if name == "cond":
            return self._cond(equation, operands)
        if name == BARRIER:
            ops, arrays = self._enter([name] * len(operands), operands)
            behind = compat.bind_equation(equation, arrays)
            pairs = zip(ops, behind, strict=True)
            return [(self._write(op, [array])[0], op.outputs[0]) for op, array in pairs]
        op = self._next(name)
        self._check_whole(op)
        arrays = [self._read(op, k, array) for k, (array, _) in enumerate(operands)]
        if makes_nothing(equation):
            results = [_nothing(var) for var in equation.outvars]
        elif name in _DECIDED:  # what it asks for, the plan has decided
            results = arrays
        else:
            results = self._bind(equation, op, arrays)
        if self.decisions.assignment[op.index] is None:
            for number, value in enumerate(op.outputs):
                self.recipes[value] = equation, operands, number
        return list(zip(self._write(op, results), op.outputs, strict=True))

    def _bind(self, equation: Any, op: Op, arrays: Sequence[Any]) -> list[Any]:
        """The results of an equation that holds no other ones."""
        stored = self.decisions.stored[op.outputs[0]] if op.outputs else None
        if equation.primitive.name == "dot_general" and stored and UNREDUCED in stored:
            assigned = self.decisions.assignment[op.index]
            assert assigned is not None
            axes = [axis for axis, d in enumerate(stored) if d == UNREDUCED]
            sizes = tuple(self.mesh.shape[name] for name in self.names)
            return [
                terms_of_product(equation, arrays, op.rule, assigned, axes, sizes, self._lay_out)
            ]
        if op.index in self.product_orders:
            told = self.product_orders[op.index]
            return [product_in_order(equation, arrays, told, kept=self._undone(op, told))]
        return compat.bind_equation(equation, arrays)

    def _undone(self, op: Op, told: ProductOrder) -> bool:
        """Whether XLA would undo the order in which a product is told to be computed.

        Where all batches but the first are cut to one element, putting the result in order is
        exchanging two dimensions, for which XLA exchanges the operands. A large one is transposed
        then, as gradients of keys were that were gathered by sequence afterwards. Partial sums are
        settled in between, which a barrier would only hinder.
        """
        stored = self.decisions.stored[op.outputs[0]]
        if stored is None or told.result == tuple(range(len(told.result))):
            return False
        if self.chosen(op).reduced[0].any():
            return False
        sizes = tuple(self.mesh.shape[name] for name in self.names)
        local = local_shape(self.program.values[op.outputs[0]].shape, stored, sizes)
        batch = len(operand_groups(op.rule)[0][0])
        return all(size == 1 for size in local[1:batch])

    def _lay_out(self, array: Any, state: Sequence[Sequence[int]]) -> Any:
        """`array` with every dimension sharded by its axes, major first."""
        entries = [tuple(self.names[axis] for axis in axes) or None for axes in state]
        return jax.lax.with_sharding_constraint(
            array, NamedSharding(self.mesh, PartitionSpec(*entries))
        )

    def _check_whole(self, op: Op) -> None:
        """Refuse to shard what the compiler would run whole on every device."""
        assigned = self.decisions.assignment[op.index] or ()
        factors = op.rule.factors
        cut = [f"{self.names[a]} on {factors[k].name}" for a, k in enumerate(assigned) if k >= 0]
        if op.primitive in _OPAQUE and cut:
            raise LoweringError(
                f"{op} is sharded by the plan ({', '.join(cut)}), but the compiler cannot cut what "
                "it cannot look into: give it a user rule that replicates these factors, or wrap "
                "the kernel in jax.experimental.custom_partitioning, whose rule is then used"
            )

    def _call(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        body, consts = compat.called_jaxpr(equation)
        return self._walk(body, consts, [a for a, _ in operands], [v for _, v in operands])

    def _remat(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """A checkpointed body: behind a barrier once differentiated, under `checkpoint` before."""
        body, consts = compat.called_jaxpr(equation)
        arrays, values = [a for a, _ in operands], [v for _, v in operands]
        if equation.params["differentiated"]:
            if equation.params["prevent_cse"]:
                arrays = self._barrier(arrays, values)
            return self._inside(body, consts, arrays, values)
        function, found, shared = self._separate(body, consts, values, arrays)
        prevent_cse, policy = equation.params["prevent_cse"], equation.params["policy"]
        run = jax.checkpoint(function, prevent_cse=prevent_cse, policy=policy)
        return self._remember(run(*arrays, *shared), found)

    def _barrier(self, arrays: Sequence[Any], values: Sequence[int]) -> list[Any]:
        """`arrays` behind a barrier, but for those that are free to be computed anywhere."""
        bound = [k for k, v in enumerate(values) if v >= 0 and not self.program.values[v].free]
        behind = list(arrays)
        if bound:
            barred = jax.lax.optimization_barrier(tuple(arrays[k] for k in bound))
            for k, array in zip(bound, barred, strict=True):
                stored = self.decisions.stored[values[k]]
                assert stored is not None
                behind[k] = self._constrain(array, stored)
        return behind

    def _custom(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """A function with a derivative rule of its own: our body, the user's rule."""
        body, consts = compat.called_jaxpr(equation)
        arrays, values = [a for a, _ in operands], [v for _, v in operands]
        primal, found, shared = self._separate(body, consts, values, arrays)
        results = compat.with_derivative_of(equation, primal)(*arrays, *shared)
        return self._remember(results, found)

    def _separate(
        self, body: Any, consts: Sequence[Any], values: Sequence[int], arrays: Sequence[Any]
    ) -> tuple[Callable[..., list[Any]], list[int], list[Any]]:
        """A body that JAX traces on its own, as a function of its operands and of shared copies.

        Returns the function, a list that it fills with the values of its results, and the resharded
        copies that the body reads: they are made outside, where others read them too.
        """
        start, stop = self.cursor, self.cursor + op_count(body)
        found: list[int] = []
        keys: list[tuple[int, bool]] = []
        for value, array in dict(zip(values, arrays, strict=True)).items():
            for use in self.readers[value] if value >= 0 else ():
                key = (value, self._is_anew(value, use.phase))
                inside = start <= use.op < stop and key not in keys
                if inside and self._reads_copy(self.program.ops[use.op], use.position):
                    keys.append(key)
                    self._copy(value, array, anew=key[1])
        shared = [self.copies[key] for key in keys]

        def function(*inner: Any) -> list[Any]:
            self.cursor = start
            copies = dict(zip(keys, inner[len(arrays) :], strict=True))
            results = self._inside(body, consts, inner[: len(arrays)], values, copies=copies)
            found[:] = [value for _, value in results]
            return [array for array, _ in results]

        return function, found, shared

    def _remember(self, results: Sequence[Any], values: Sequence[int]) -> list[tuple[Any, int]]:
        for array, value in zip(results, values, strict=True):
            if value >= 0:
                self.arrays[value] = array
        return list(zip(results, values, strict=True))

    def _inside(
        self,
        body: Any,
        consts: Sequence[Any],
        arrays: Sequence[Any],
        values: Sequence[int],
        *,
        copies: dict[tuple[int, bool], Any] | None = None,
    ) -> list[tuple[Any, int]]:
        """Walk an inlined body whose arguments are new arrays of known values.

        Resharded copies are shared with the outside, unless the body is traced on its own: then it
        knows only the `copies` given, and the outside none of its own.
        """
        keep = copies is None
        saved, outside = dict(self.arrays), self.copies
        if copies is not None:
            self.copies = copies
        for value, array in zip(values, arrays, strict=True):
            if value >= 0:
                self.arrays[value] = array
        results = self._walk(body, consts, arrays, values)
        if keep:
            for value in values:
                if value >= 0:
                    self.arrays[value] = saved[value]
        else:
            self.arrays, self.copies = saved, outside
        return results

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

    def _enter(self, kinds: Sequence[str], operands: list[tuple[Any, int]]) -> tuple[list, list]:
        ops = [self._next(kind) for kind in kinds]
        outer = [self._read(op, 0, array) for op, (array, _) in zip(ops, operands, strict=True)]
        return ops, outer

    def _start_body(self, ops: Sequence[Op], arrays: Sequence[Any]) -> None:
        made: dict[int, Any] = {}
        for op, array in zip(ops, arrays, strict=True):
            value = op.outputs[0]
            stored = self.decisions.stored[value]
            if stored is not None:
                self.arrays[value] = self._constrain(array, stored)
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
        if self.decisions.assignment[op.index] is None or array.ndim == 0:
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

    def _scan(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        params = equation.params
        closed = params["jaxpr"]
        consts, carries = params["num_consts"], params["num_carry"]
        kinds = [
            "enter" if k < consts else "carry" if k < consts + carries else "unstack"
            for k in range(len(operands))
        ]
        ends = ["yield" if k < carries else "stack" for k in range(len(equation.outvars))]
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


def _nothing(var: Any) -> Any:
    """The array of no elements that a variable stands for."""
    return jnp.zeros(var.aval.shape, var.aval.dtype)
