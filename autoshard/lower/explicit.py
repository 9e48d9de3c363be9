"""Lower a plan to a `shard_map` program in which every collective is written out.

    lowered = autoshard.lower(plan, step, params, batch, explicit=True)

Nothing is left to a partitioner: each device runs its parts of all ops (`autoshard.lower.local`),
and between them the planned collectives (`autoshard.lower.parts.manual`) stand as calls of
`jax.lax`, in the order of the plan. The collectives that are read from the program's jaxpr
(`written_collectives`) are exactly the plan's moves.

Values that are computed of constants alone are computed whole on every device, and each reader
takes its part. Derivative rules are inlined: differentiate the step, then plan and lower it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from autoshard import compat
from autoshard.lower.collectives import Collective
from autoshard.lower.interpret import Interpreter, LoweringError
from autoshard.lower.local import run_locally
from autoshard.lower.parts.cut import Cut
from autoshard.lower.parts.manual import Devices, own_part, reduce_over, reduce_scatter, run_hop
from autoshard.lower.products import product_in_order
from autoshard.plan.plan import Plan
from autoshard.plan.types.hops import hop
from autoshard.plan.types.op_types import OpTypes, op_types
from autoshard.program.layout import UNREDUCED, Layout, dimension_axes, local_shape
from autoshard.program.ragged import ROUNDS
from autoshard.program.trace import Op, Program
from autoshard.program.vocabulary import CALLS_PYTHON


class ExplicitInterpreter(Interpreter):
    """One re-trace of a program on the parts of one device; make a new one for every trace."""

    def __init__(self, program: Program, plan: Plan, mesh: Any) -> None:
        super().__init__(program, plan, mesh)
        self.devices = Devices(plan.mesh.names, plan.mesh.sizes)
        self._types: dict[object, OpTypes] = {}

    def types(self, op: Op) -> OpTypes:
        """What `op` reads and writes under the plan."""
        assigned = self.decisions.assignment[op.index]
        assert assigned is not None
        key = (id(op.rule), assigned)
        if key not in self._types:
            self._types[key] = op_types(op.rule, assigned, self.devices.sizes, self.names)
        return self._types[key]

    def _joined(self, equation: Any, array: Any) -> Any:
        return array  # every device computes free values for itself

    def _constrain(self, array: Any, layout: Layout) -> Any:
        return array  # it is a part already

    def _reads(self, op: Op, position: int) -> Layout:
        return self.types(op).reads[position]

    def _read(self, op: Op, position: int, literal: Any) -> Any:
        value = op.inputs[position]
        if value >= 0 and self.decisions.stored[value] is not None:
            return super()._read(op, position, literal)
        array = literal if value < 0 else self.arrays.get(value, literal)
        if self.decisions.assignment[op.index] is None or not getattr(array, "ndim", 0):
            return array
        return self._part(array, self._reads(op, position))

    def _part(self, array: Any, layout: Layout) -> Any:
        """This device's part of an array that every device has whole."""
        return own_part(array, dimension_axes(array.ndim, layout), self.devices)

    def _copy(self, value: int, array: Any, *, anew: bool) -> Any:
        key = (value, anew)
        if key not in self.copies:
            stored, copy = self.decisions.stored[value], self.decisions.copy[value]
            record = self.program.values[value]
            assert stored is not None
            assert copy is not None
            part = jax.lax.optimization_barrier(array) if anew else array
            here = dimension_axes(len(record.shape), stored)
            for state in self.reshards[record.shape, record.itemsize, stored, copy]:
                step = hop(here, state, self.devices.sizes)
                assert step is not None, "the plan was type-checked"
                part, here = run_hop(part, step, self.devices), state
            self.copies[key] = part
        return self.copies[key]

    def _write(self, op: Op, results: Sequence[Any]) -> list[Any]:
        if self.decisions.assignment[op.index] is not None:
            types = self.types(op)
            results = [
                self._settle(op, types, number, array) if types.partial else array
                for number, array in enumerate(results)
            ]
        self.arrays.update(zip(op.outputs, results, strict=True))
        return list(results)

    def _settle(self, op: Op, types: OpTypes, number: int, array: Any) -> Any:
        """A result whose terms are spread over devices, as it is stored."""
        written = types.written[number]
        stored = self.decisions.stored[op.outputs[number]] or written
        if UNREDUCED in stored:
            return array  # the sum that it is a term of is settled
        axes = [axis for axis, _ in types.partial]
        scattered = [axis for axis in axes if stored[axis] != written[axis]]
        if scattered:
            onto = {
                d: tuple(axis for axis in scattered if stored[axis] == d)
                for d in sorted({stored[axis] for axis in scattered})
            }
            array = reduce_scatter(array, onto, self.devices)
            axes = [axis for axis in axes if axis not in scattered]
            if not axes:
                return array
        operators = sorted({operator for _, operator in types.partial})
        if len(operators) == 1:
            try:
                return reduce_over(array, axes, operators[0], self.devices)
            except NotImplementedError as error:
                raise LoweringError(f"{op}: {error}; replicate what it reduces") from error
        raise LoweringError(f"{op} is reduced by {' and '.join(operators)}: replicate one of them")

    def _bind(self, equation: Any, op: Op, arrays: Sequence[Any]) -> list[Any]:
        if self.decisions.assignment[op.index] is None:
            return compat.bind_equation(equation, arrays)
        if op.primitive in CALLS_PYTHON and op.primitive != "pure_callback":
            return self._call_once(equation, op, arrays)
        if op.index in self.product_orders:
            return [product_in_order(equation, arrays, self.product_orders[op.index])]
        types = self.types(op)
        shapes = tuple(self.program.values[value].shape for value in op.outputs)
        axes = tuple(axis for axis, _ in types.partial)
        assigned = self.decisions.assignment[op.index] or ()
        cut = Cut(op, types.reads, types.written, axes, shapes, self.devices, assigned)
        return run_locally(equation, arrays, cut)

    def _call_once(self, equation: Any, op: Op, arrays: Sequence[Any]) -> list[Any]:
        """A call of Python that has an effect, on the first device alone."""
        if equation.params.get("partitioned"):
            return compat.bind_equation(equation, arrays)
        if op.outputs or equation.params.get("ordered"):
            raise LoweringError(
                f"{op} has an effect, results or an order, and would run on every device: lower "
                "without explicit=True"
            )
        place = sum(jax.lax.axis_index(name) for name in self.names)
        return jax.lax.cond(
            place == 0, lambda *given: compat.bind_equation(equation, given), lambda *_: [], *arrays
        )

    def _remat(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        if equation.params["differentiated"]:
            return super()._remat(equation, operands)
        return self._call(equation, operands)

    def _custom(self, equation: Any, operands: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
        return self._call(equation, operands)


def manual_step(program: Program, plan: Plan, mesh: Any) -> Callable[..., list[Any]]:
    """The step on flat arguments, as a `jax.shard_map` over all axes of `mesh`.

    Arrays of no elements are made where they are read: handed to a `shard_map` or by it, they crash
    the compiler of jaxlib 0.11.2 for CPUs.
    """
    sizes = plan.mesh.sizes
    given = [not _is_nothing(program, value) for value in program.inputs]
    made = [not _is_nothing(program, value) for value in program.outputs]

    def specs(side: str, paths: Sequence[str], kept: Sequence[bool]) -> Iterator[PartitionSpec]:
        return (plan.specs[side][path] for path in compress(paths, kept))

    def nothing(value: int, *, local: bool) -> Any:
        record, layout = program.values[value], plan.decisions.stored[value]
        shape = local_shape(record.shape, layout, sizes) if local and layout else record.shape
        return jnp.zeros(shape, record.dtype)

    def body(*parts: Any) -> list[Any]:
        left = iter(parts)
        pairs = zip(program.inputs, given, strict=True)
        whole = [next(left) if kept else nothing(value, local=True) for value, kept in pairs]
        return list(compress(ExplicitInterpreter(program, plan, mesh).run(*whole), made))

    run = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=tuple(specs("inputs", program.input_paths, given)),
        out_specs=list(specs("outputs", program.output_paths, made)),
        check_vma=False,  # gathered values are equal on all devices, which it does not see
    )

    def step(*arrays: Any) -> list[Any]:
        results = iter(run(*compress(arrays, given)))
        pairs = zip(program.outputs, made, strict=True)
        return [next(results) if kept else nothing(value, local=False) for value, kept in pairs]

    return step


def _is_nothing(program: Program, value: int) -> bool:
    """Whether a value is an array of no elements, of numbers."""
    record = program.values[value]
    return 0 in record.shape and not record.dtype.startswith("key<")


_KINDS = {
    **dict.fromkeys(("psum", "pmax", "pmin", "psum_invariant"), "all_reduce"),
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "all_to_all": "all_to_all",
    "ppermute": "collective_permute",
    "ragged_all_to_all": "all_to_all",
}


def written_collectives(jaxpr: Any, *, loop_trips: Sequence[int] = ()) -> list[Collective]:
    """Every collective that a jaxpr calls, in program order, loops multiplied out.

    Args:
      jaxpr: of a step that holds a `shard_map`, or of the body of one.
      loop_trips: how often each `while` loop runs, in program order; further ones count once.
    """
    return list(_written(jaxpr, 1, iter(loop_trips)))


def _written(jaxpr: Any, count: int, trips: Iterator[int]) -> Iterator[Collective]:
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name, params = equation.primitive.name, equation.params
        if name in _KINDS:
            axes = params.get("axes", params.get("axis_name"))
            sized = equation.outvars if _KINDS[name] == "all_gather" else equation.invars
            for atom in sized[:1] if name == "ragged_all_to_all" else sized:
                shape, dtype, itemsize = compat.array_facts(atom.aval)
                size = itemsize
                for length in shape:
                    size *= length
                yield Collective(
                    _KINDS[name],
                    (axes,) if isinstance(axes, str) else tuple(axes),
                    size,
                    count,
                    str(equation.source_info.name_stack),
                    compat.source_line(equation),
                    shape,
                    dtype,
                )
        times = params["length"] if name == "scan" else 1
        if name == "while" and ROUNDS not in str(equation.source_info.name_stack):
            times = next(trips, 1)
        for value in params.values():
            bodies = value if isinstance(value, tuple | list) else (value,)
            if params.get("branches_platforms"):  # the same, as each platform does it, CPUs first
                bodies = bodies[-1:]
            for body in bodies:
                if hasattr(body, "eqns") or hasattr(body, "jaxpr"):
                    yield from _written(body, count * times, trips)
