"""How Shardy's propagation completes what a program says of its arrays.

A program that is annotated by hand says the layouts of some arrays: shardings of its arguments, and
constraints. The layouts of all others the compiler decides, by propagation
(https://openxla.org/shardy/propagation). Here the program is lowered as it is, every operation
under a scope with its number; Shardy's own passes run, and the layouts of its values are read off
the module.

What a loop hands to a turn of its body, and what it leaves behind, gets a constraint of which every
dimension is open: it asks for nothing, and has the layout that propagation gives to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard import compat
from autoshard.lower.facts.module_layouts import ModuleLayouts, number_of
from autoshard.lower.facts.platforms import platform_to_read
from autoshard.lower.inlined import run_call
from autoshard.lower.merged import walk_in
from autoshard.plan.plan import MeshShape
from autoshard.problem.requirements.from_program import Constraint
from autoshard.problem.requirements.preferred import Preferred
from autoshard.program.bodies import run_equations
from autoshard.program.flatten import makes_nothing
from autoshard.program.layout_pattern import LayoutPattern
from autoshard.program.rules.record import FactorKind, Rule, factor_name
from autoshard.program.trace import Program
from autoshard.program.vocabulary import BARRIER, CALLS_PYTHON, INLINED


def completed(program: Program, mesh: MeshShape, own: Sequence[Constraint]) -> Preferred:
    """The layouts of values as propagation completes them, and how ops read and write them.

    What propagation cuts as no plan does is left out. Where operands or the result of an op
    disagree, Shardy's own pass says where they are resharded.

    Args:
      program: with its own constraints.
      mesh: of the plan; axes of the program's constraints are those of the same names.
      own: what the program demands of its inputs and results, and of what is inside. Inputs and
        results that are the same state lie alike.
    """
    whole = AbstractMesh(mesh.sizes, mesh.names, axis_types=(AxisType.Auto,) * len(mesh.sizes))
    said = _of_ends(program, own)
    given, asked = (
        [_sharding(said.get(value), whole) for value in side]
        for side in (program.inputs, program.outputs)
    )
    step = jax.jit(
        _Numbered(program, whole).run,
        in_shardings=tuple(given),
        out_shardings=asked,
        keep_unused=True,
    )
    shapes = [compat.shape_struct(var.aval) for var in program.jaxpr.jaxpr.invars]
    with compat.no_other_mesh(whole):
        lowered = step.trace(*shapes).lower(lowering_platforms=(platform_to_read(program),))
    module = lowered.compiler_ir("stablehlo")
    _give_rules(program, module)
    propagated = compat.propagated(module)
    reader = ModuleLayouts(program, mesh)
    values = reader.of_values(propagated)
    ops = reader.of_ops(compat.with_reshards(propagated))
    for number, layouts in ops.items():
        if layouts.written is not None and not reader.sums_over(number, layouts):
            values[program.ops[number].outputs[0]] = layouts.written  # a copy has the other layout
    values = {value: one for value, one in values.items() if not program.values[value].free}
    return Preferred(values, ops)


def _of_ends(program: Program, own: Sequence[Constraint]) -> dict[int, LayoutPattern]:
    """What is said of inputs and results."""
    ends = {*program.inputs, *program.outputs}
    said: dict[int, LayoutPattern] = {}
    for one in own:
        if one.layout is not None:
            said |= dict.fromkeys(ends.intersection(one.values), one.layout)
    for first, last in ((program.inputs[i], program.outputs[o]) for i, o in program.ties):
        for known, other in ((first, last), (last, first)):
            if known in said:
                said.setdefault(other, said[known])
    return said


def _sharding(layout: LayoutPattern | None, mesh: Any) -> NamedSharding | None:
    """None says nothing, as `jax.jit` understands it: so where a part of the layout is open."""
    if layout is None or layout.more or any(mesh.shape.get(axis, 1) > 1 for axis in layout.free):
        return None
    if any(one.open for one in layout.dimensions):
        return None
    return NamedSharding(mesh, PartitionSpec(*(one.axes or None for one in layout.dimensions)))


class _Numbered:
    """One re-trace of a program, each of whose operations stands under a scope with its number."""

    def __init__(self, program: Program, mesh: Any) -> None:
        self.program, self.mesh = program, mesh
        self.cursor = 0

    def run(self, *arrays: Any) -> list[Any]:
        """The step on flat inputs; returns flat outputs."""
        closed = self.program.jaxpr
        return run_equations(closed.jaxpr, closed.consts, arrays, self._equation)

    def _equation(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        name = equation.primitive.name
        if name in INLINED:
            return run_call(equation, operands, self._equation)
        if name in ("scan", "while"):
            return self._loop(equation, operands)
        if name == "cond":
            return self._cond(equation, operands)
        first = self.cursor
        self.cursor += len(operands) if name == BARRIER else 1
        with jax.named_scope(f"op_{first}_"):
            if name == "sharding_constraint":
                return [self._constrained(equation, operands[0])]
            if name in (*compat.KERNELS, compat.RULED, *CALLS_PYTHON) and not makes_nothing(
                equation
            ):
                shapes = [compat.shape_struct(var.aval) for var in equation.outvars]
                return list(jax.ffi.ffi_call(name, shapes)(*operands))
            return compat.bind_equation(equation, operands)

    def _constrained(self, equation: Any, array: Any) -> Any:
        """An array under a constraint of the program, on the mesh of the plan.

        An axis that has one device in the program's own mesh says nothing there, and may cut
        whatever is whole.
        """
        sharding, rank = equation.params["sharding"], array.ndim
        alone = {name for name, size in sharding.mesh.shape.items() if size == 1}
        here = {name for name, size in self.mesh.shape.items() if size > 1}
        whole = PartitionSpec.UNCONSTRAINED if alone & here else None
        asked = [*sharding.spec, *(None for _ in range(rank - len(sharding.spec)))]
        for at in equation.params.get("unconstrained_dims") or ():
            asked[at] = PartitionSpec.UNCONSTRAINED
        entries: list[Any] = []
        for entry in asked:
            if entry is not PartitionSpec.UNCONSTRAINED:
                axes = entry if isinstance(entry, tuple) else (entry,)
                entry = tuple(axis for axis in axes if axis in here - alone) or whole
            entries.append(entry)
        where = NamedSharding(self.mesh, PartitionSpec(*entries))
        return jax.lax.with_sharding_constraint(array, where)

    def _mark(self, number: int, array: Any) -> Any:
        """An array that propagation lays out as it pleases, to be found by a number."""
        if not getattr(array, "ndim", 0):
            return array
        spec = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * array.ndim)
        with jax.named_scope(f"op_{number}_"):
            return jax.lax.with_sharding_constraint(array, NamedSharding(self.mesh, spec))

    def _loop(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        params, first = equation.params, self.cursor
        self.cursor += len(operands)
        if equation.primitive.name == "scan":
            consts, carries = compat.scan_counts(params)
            sliced = range(consts + carries, len(operands))
            begin = {at: first + at for at in sliced}
            changed = {"jaxpr": self._body(params["jaxpr"], begin)}
        else:
            keys = "cond_jaxpr", "body_jaxpr"
            changed = {key: self._body(params[key], {}) for key in keys}
        last = self.cursor
        self.cursor += len(equation.outvars)
        results = compat.bind_equation(equation, operands, **changed)
        return [self._mark(last + at, array) for at, array in enumerate(results)]

    def _cond(self, equation: Any, operands: Sequence[Any]) -> list[Any]:
        branches = []
        for branch in equation.params["branches"]:
            self.cursor += len(operands) - 1
            branches.append(self._body(branch, {}))
        last = self.cursor
        self.cursor += len(equation.outvars)
        results = compat.bind_equation(equation, operands, branches=tuple(branches))
        return [self._mark(last + at, array) for at, array in enumerate(results)]

    def _body(self, closed: Any, marked: Mapping[int, int]) -> Any:
        def body(*arrays: Any) -> list[Any]:
            given = [self._mark(marked[k], a) if k in marked else a for k, a in enumerate(arrays)]
            return run_equations(closed.jaxpr, closed.consts, given, self._equation)

        return jax.make_jaxpr(body)(*map(compat.shape_struct, closed.in_avals))


def _give_rules(program: Program, module: Any) -> None:
    """Tell Shardy how what it has no rule for may be cut: calls, and operations of CHLO."""
    for operation in walk_in(module.operation):
        number = number_of(operation)
        if number is None or not operation.name.startswith(("stablehlo.custom_call", "chlo.")):
            continue
        rule = program.ops[number].rule
        ranks = [
            len(getattr(one.type, "shape", ())) for one in (*operation.operands, *operation.results)
        ]
        known = [len(one) for one in (*rule.operands, *rule.results)]
        if ranks == known and rule.operands and rule.results and not rule.joint:
            compat.set_sharding_rule(operation, str(_in_its_words(rule)))


def _in_its_words(rule: Rule) -> Rule:
    """A rule with names and kinds of factors that Shardy knows; it has sums alone."""
    kinds = {FactorKind.PASS: None, FactorKind.REDUCE: "sum", FactorKind.REPLICATE: None}
    factors = (
        replace(one, operator=kinds[one.kind])
        if one.kind in kinds
        else replace(one, kind=FactorKind.REPLICATE)
        for one in rule.factors
    )
    named = (replace(one, name=factor_name(number)) for number, one in enumerate(factors))
    return replace(rule, factors=tuple(named))
