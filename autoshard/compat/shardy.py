"""Shardy's passes inside of jaxlib: rules of ops, explicit collectives, layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LoweredOp:
    """One StableHLO op: `operands` and `results` are indices of values in its `LoweredModule`.

    `rule` is the text of Shardy's rule, if it has one; `operator` the combination that the op's
    region computes, if that is a single one (`sum`, `max`, …); `splat` the value of a scalar
    constant.
    """

    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: str | None = None
    operator: str | None = None
    splat: float | None = None


@dataclass(frozen=True, slots=True)
class LoweredModule:
    """Equations lowered together: all ops in order, with calls inlined.

    `shapes[v]` is the shape of value `v`; `arguments[e]` and `outputs[e]` are the values that
    stand for the operands and the results of equation `e`.
    """

    ops: tuple[LoweredOp, ...]
    shapes: tuple[tuple[int, ...], ...]
    arguments: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]


_REGION_OPERATORS = {
    "stablehlo.add": "sum",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
    "stablehlo.multiply": "prod",
}
_OPS_WITH_COMBINER = frozenset({"stablehlo.reduce", "stablehlo.scatter"})


def lower_equations(equations: Sequence[Any], platform: str) -> LoweredModule:
    """Lowers `equations`, each on arguments of its own, in one module; no device is needed.

    Raises whatever the lowering of one of them raises.
    """
    import jax
    from jaxlib.mlir import ir, passmanager

    structs = [
        jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)
        for equation in equations
        for atom in equation.invars
    ]

    def bind_all(*arguments: Any) -> list[Any]:
        results: list[Any] = []
        rest = iter(arguments)
        for equation in equations:
            operands = [next(rest) for _ in equation.invars]
            parameters = equation.primitive.get_bind_params(equation.params)
            with jax.threefry_partitionable(partitionable_random_bits(equation)):
                out = equation.primitive.bind(*operands, **parameters)
            results.extend(out if equation.primitive.multiple_results else [out])
        return results

    lowered = jax.jit(bind_all, keep_unused=True).trace(*structs)
    module: Any = lowered.lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")
    with module.context:
        passes = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
        passmanager.PassManager.parse(passes).run(module.operation)
        functions = {
            ir.StringAttr(function.attributes["sym_name"]).value: function
            for function in module.body.operations
            if function.operation.name == "func.func"
        }
        reader = _ModuleReader(ir, functions)
        entry = functions["main"].regions[0].blocks[0]
        arguments = [reader.value(argument) for argument in entry.arguments]
        results = reader.block(entry, dict(zip(entry.arguments, arguments, strict=True)))
    operand_counts = [len(equation.invars) for equation in equations]
    result_counts = [len(equation.outvars) for equation in equations]
    return LoweredModule(
        tuple(reader.ops),
        tuple(reader.shapes),
        _chunks(arguments, operand_counts),
        _chunks(results, result_counts),
    )


def _chunks(items: Sequence[int], counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    rest = iter(items)
    return tuple(tuple(next(rest) for _ in range(count)) for count in counts)


class _ModuleReader:
    """Copies the functions of an MLIR module into plain records, inlining calls."""

    def __init__(self, ir: Any, functions: dict[str, Any]) -> None:
        self.ir = ir
        self.functions = functions
        self.ops: list[LoweredOp] = []
        self.shapes: list[tuple[int, ...]] = []

    def value(self, value: Any) -> int:
        is_tensor = isinstance(value.type, self.ir.RankedTensorType)
        self.shapes.append(tuple(value.type.shape) if is_tensor else ())
        return len(self.shapes) - 1

    def block(self, block: Any, values: dict[Any, int]) -> list[int]:
        """Reads the ops of a function's `block`; `values` has its arguments; its results."""
        key, prefix = "sdy.sharding_rule", "#sdy.op_sharding_rule<"
        for view in block.operations:
            op = view.operation
            name, attributes = op.name, op.attributes
            # A value captured from outside (only regions do that) is not among the values.
            operands = [values[operand] for operand in op.operands if operand in values]
            if name == "func.return":
                return operands
            if name == "func.call":
                callee = self.functions[self.ir.FlatSymbolRefAttr(attributes["callee"]).value]
                body = callee.regions[0].blocks[0]
                inner = self.block(body, dict(zip(body.arguments, operands, strict=True)))
                values.update(zip(op.results, inner, strict=True))
                continue
            results = [self.value(result) for result in op.results]
            values.update(zip(op.results, results, strict=True))
            rule = str(attributes[key])[len(prefix) : -1] if key in attributes else None
            operator = self.combiner(op) if name in _OPS_WITH_COMBINER else None
            splat = self.splat(op) if name == "stablehlo.constant" else None
            self.ops.append(LoweredOp(name, tuple(operands), tuple(results), rule, operator, splat))
        raise AssertionError("a function without func.return")

    def combiner(self, op: Any) -> str | None:
        """The operator of a region of one binary op on the region's two arguments.

        None for bits of integers, and for products of complex numbers: on CPUs or GPUs, XLA makes
        an all-reduce of truth values alone, and of sums.
        """
        block = op.regions[0].blocks[0]
        inner = [view.operation for view in block.operations]
        if len(inner) != 2 or set(inner[0].operands) != set(block.arguments):
            return None
        operator = _REGION_OPERATORS.get(inner[0].name)
        kind = str(inner[0].result.type)
        if operator in ("and", "or") and kind != "tensor<i1>":
            return None
        if operator == "prod" and "complex" in kind:
            return None
        return operator

    def splat(self, constant: Any) -> float | None:
        if "complex" in str(constant.result.type):
            return None  # no attribute of Python's
        attribute = constant.attributes["value"]
        if not isinstance(attribute, self.ir.DenseElementsAttr) or not attribute.is_splat:
            return None
        scalar = attribute.get_splat_value()
        return float(scalar.value) if hasattr(scalar, "value") else None


def parse_sharding_rule(text: str, **options: Any) -> Any:
    """The `SdyShardingRule` that `text` spells in the grammar of JAX's `custom_partitioning`."""
    from jax._src.custom_partitioning_sharding_rule import str_to_sdy_sharding_rule

    return str_to_sdy_sharding_rule(text, **options)


def carried_sharding_rule(equation: Any) -> Any:
    """The `SdyShardingRule` that an equation of `custom_partitioning` carries, or None.

    A function that makes one is called as JAX calls it, with the types of operands and results, but
    with a mesh of no axes: rules are asked for before there is one.
    """
    import jax
    import numpy as np
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    rule = equation.params["sharding_rule"]
    if not callable(rule):
        return rule

    def typed(atom: Any) -> Any:
        return ir.RankedTensorType.get(atom.aval.shape, mlir.dtype_to_ir_type(atom.aval.dtype))

    nowhere = jax.sharding.Mesh(np.empty((), dtype=object), ())
    with mlir.make_ir_context(), ir.Location.unknown():
        operands, results = (
            [typed(atom) for atom in atoms] for atoms in (equation.invars, equation.outvars)
        )
        rule = rule(*equation.params["static_args"], nowhere, operands, results)
    options: Mapping[str, Any] = {}
    if isinstance(rule, tuple | list) and len(rule) == 2:
        rule, options = rule
    return parse_sharding_rule(rule, **options) if isinstance(rule, str) else rule


_COLLECTIVE_PIPELINES = (
    "builtin.module(sdy-propagation-pipeline)",
    "builtin.module(func.func(sdy-sharding-constraint-to-reshard,"
    "sdy-insert-explicit-reshards{enable-full-version=true}))",
    "builtin.module(func.func(sdy-reshard-to-collectives))",
)


def with_explicit_collectives(module: Any) -> Any:
    """A copy of a lowered module in which Shardy has made every collective an operation.

    Jaxlib's `inline` pass leaves `func.call`s as they are, so the copy still has calls. What JAX
    lowers is not verified again after every pass, which would take twice as long as the passes.
    """
    copy = module.operation.clone()
    make_collectives_explicit(copy)
    return copy


def propagated(module: Any) -> Any:
    """A copy of a lowered module in which Shardy has laid out every value, by propagation."""
    copy = module.operation.clone()
    _run(copy, _COLLECTIVE_PIPELINES[:1])
    return copy


def with_reshards(module: Any) -> Any:
    """A copy of a module that `propagated` made, with reshards between ops that disagree."""
    copy = module.clone()
    _run(copy, _COLLECTIVE_PIPELINES[1:2])
    return copy


def make_collectives_explicit(module: Any) -> None:
    """Have Shardy make every collective of a module an operation, in the module itself."""
    _run(module, _COLLECTIVE_PIPELINES)


def _run(module: Any, pipelines: Sequence[str]) -> None:
    from jaxlib.mlir import passmanager

    for pipeline in pipelines:
        passes = passmanager.PassManager.parse(pipeline, module.context)
        passes.enable_verifier(False)
        passes.run(module.operation)


def set_sharding_rule(operation: Any, text: str) -> None:
    """Have an operation of a module be cut by a rule, in Shardy's own text."""
    from jaxlib.mlir import ir

    with operation.context:
        rule = ir.Attribute.parse(f"#sdy.op_sharding_rule<{text}>")
    operation.attributes["sdy.sharding_rule"] = rule


def shardy_mesh_axes(attribute: Any) -> tuple[tuple[str, int], ...]:
    """(name, size) of every axis of a `sdy.mesh` attribute, in mesh order."""
    from jaxlib.mlir.dialects import sdy

    axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(attribute).axes)
    return tuple((axis.name, axis.size) for axis in axes)


def shardy_layout(attribute: Any) -> tuple[Any, tuple[tuple[Any, ...], ...]]:
    """(mesh name or mesh attribute, axes of each dimension) of a `sdy.sharding` attribute.

    An axis is (name, None), or (name, (product of the sizes before it, size)) for a sub-axis.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    sharding = sdy.TensorShardingAttr(attribute)
    dimensions = []
    for dimension in sharding.dimension_shardings:
        axes = []
        for entry in sdy.DimensionShardingAttr(dimension).axes:
            axis = sdy.AxisRefAttr(entry)
            part = axis.sub_axis_info
            if part is not None:
                part = sdy.SubAxisInfoAttr(part)
                part = (part.pre_size, part.size)
            axes.append((axis.name, part))
        dimensions.append(tuple(axes))
    mesh = sharding.mesh_or_ref
    if isinstance(mesh, ir.FlatSymbolRefAttr):
        mesh = mesh.value
    return mesh, tuple(dimensions)


def shardy_sharding_of(value: Any) -> Any | None:
    """The `sdy.sharding` attribute that an MLIR value carries, or None for a replicated value."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    owner = value.owner
    if not isinstance(owner, ir.Block):
        attributes = owner.attributes
        if "out_sharding" in attributes:
            return attributes["out_sharding"]
        if owner.name in ("sdy.sharding_constraint", "sdy.reshard"):
            return attributes["sharding"]
        number = ir.OpResult(value).result_number
        key = "out_shardings" if owner.name == "sdy.manual_computation" else "sdy.sharding"
        return _sharding_of_number(attributes, key, number, sdy)
    number = ir.BlockArgument(value).arg_number
    parent = owner.owner
    if parent.operation.name == "func.func":
        if "arg_attrs" not in parent.attributes:
            return None
        facts = ir.DictAttr(ir.ArrayAttr(parent.attributes["arg_attrs"])[number])
        return facts["sdy.sharding"] if "sdy.sharding" in facts else None  # noqa: SIM401
    return _sharding_of_number(parent.attributes, "sdy.sharding", number, sdy)


def _sharding_of_number(attributes: Any, key: str, number: int, sdy: Any) -> Any | None:
    if key not in attributes:
        return None
    shardings = list(sdy.TensorShardingPerValueAttr(attributes[key]).shardings)
    return shardings[number] if number < len(shardings) else None


def elements(kind: Any) -> int:
    """How many elements a value of an MLIR type has; 0 for one that is not an array."""
    return math.prod(getattr(kind, "shape", ())) if getattr(kind, "has_static_shape", False) else 0


def is_block_argument(value: Any) -> int | None:
    """The number of an MLIR value among its block's arguments, or None for an op's result."""
    from jaxlib.mlir import ir

    return ir.BlockArgument(value).arg_number if isinstance(value.owner, ir.Block) else None


def integers(attribute: Any) -> tuple[int, ...]:
    """The numbers of an array attribute of 64-bit integers."""
    from jaxlib.mlir import ir

    return tuple(int(number) for number in ir.DenseI64ArrayAttr(attribute))


def integer_table(attribute: Any) -> NDArray[np.int64]:
    """The numbers of a dense attribute of 64-bit integers, `[rows, columns]`."""
    from jaxlib.mlir import ir

    return np.array(ir.DenseIntElementsAttr(attribute))


def splat_integer(attribute: Any) -> int | None:
    """The integer of a constant's scalar value, or None where it is not one integer."""
    from jaxlib.mlir import ir

    try:
        dense = ir.DenseElementsAttr(attribute)
        return int(ir.IntegerAttr(dense.get_splat_value()).value) if dense.is_splat else None
    except ValueError:
        return None


def location_frames(location: Any) -> tuple[str, tuple[tuple[str, int], ...]]:
    """(name stack, frames as (file name, line), innermost first) of an MLIR location."""
    from jaxlib.mlir import ir

    name = location.name_str if isinstance(location, ir.NameLoc) else ""
    frames: list[tuple[str, int]] = []
    pending = [location]
    while pending:
        here = pending.pop()
        if isinstance(here, ir.NameLoc):
            pending.append(here.child_loc)
        elif isinstance(here, ir.CallSiteLoc):
            pending.extend((here.caller, here.callee))
        elif isinstance(here, ir.FileLineColLoc):
            frames.append((here.filename, here.start_line))
        elif isinstance(here, ir.FusedLoc):
            pending.extend(reversed(list(here.locations)))
    return name, tuple(frames)


def partitionable_random_bits(equation: Any) -> bool:
    """Whether `equation` was traced so that each random number is computed from its index alone."""
    return bool(getattr(equation.ctx, "threefry_partitionable", True))
