"""How the values and ops of a program lie in a module that Shardy has worked on.

Every operation of the module stands under a scope with the number of its op, `op_12_`
(`autoshard.lower.facts.completed`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from autoshard import compat
from autoshard.lower.merged import walk_in
from autoshard.plan.plan import MeshShape
from autoshard.problem.requirements.preferred import OpLayouts
from autoshard.program.layout_pattern import Dimension, LayoutPattern
from autoshard.program.rules.record import FactorKind
from autoshard.program.trace import Op, Program
from autoshard.program.vocabulary import BARRIER, RESHARDS

_NUMBER = re.compile(r"op_(\d+)_")


def number_of(operation: Any) -> int | None:
    """Of the op that an operation of a module is of."""
    found = _NUMBER.findall(compat.location_frames(operation.location)[0])
    return int(found[-1]) if found else None


class ModuleLayouts:
    """Reads layouts off a module; those that no plan has are None."""

    def __init__(self, program: Program, mesh: MeshShape) -> None:
        self.program, self.mesh = program, mesh
        self.known: dict[Any, LayoutPattern | None] = {}

    def of_values(self, module: Any) -> dict[int, LayoutPattern]:
        """Of all values that can be told, in a module where propagation has been."""
        made: dict[int, list[Any]] = {}
        found = [(number_of(one), one) for one in walk_in(module.operation)]
        for called in (False, True):  # a call's results are after those of what it calls
            for number, one in found:
                if number is not None and called == (one.name == "func.call"):
                    made.setdefault(number, []).extend(one.results)
        given = _main(module).regions[0].blocks[0].arguments
        pairs = list(zip(self.program.inputs, given, strict=True))
        for number, results in made.items():
            pairs += self._results(number, results)
        layouts = {value: self._layout(result) for value, result in pairs}
        return self._boundaries({v: one for v, one in layouts.items() if one is not None})

    def of_ops(self, module: Any) -> dict[int, OpLayouts]:
        """Of what ops read and write, in a module with reshards between ops that disagree.

        They are told of ops that are one operation of the module, of the same operands and result.
        """
        found: dict[int, OpLayouts] = {}
        for operation in walk_in(module.operation):
            number = number_of(operation)
            if number is None or not operation.name.startswith("stablehlo."):
                continue
            op = self.program.ops[number]
            if op.primitive in RESHARDS or not self._is_like(op, operation):
                continue
            reads = tuple(
                self._layout(one) if _shape(one) == self._shape(value) else None
                for value, one in zip(op.inputs, operation.operands, strict=True)
            )
            found[number] = OpLayouts(reads, self._layout(operation.results[0]))
        return found

    def sums_over(self, number: int, layouts: OpLayouts) -> bool:
        """Whether an op that reads so leaves partial sums."""
        rule = self.program.ops[number].rule
        return any(
            dimension.axes and any(rule.factors[k].kind is FactorKind.REDUCE for k in factors)
            for read, operand in zip(layouts.reads, rule.operands, strict=True)
            if read is not None
            for dimension, factors in zip(read.dimensions, operand, strict=True)
        )

    def _is_like(self, op: Op, operation: Any) -> bool:
        results = list(operation.results)
        return (
            len(op.inputs) == len(list(operation.operands))
            and len(op.outputs) == len(results) == 1
            and _shape(results[0]) == self._shape(op.outputs[0])
        )

    def _shape(self, value: int) -> tuple[int, ...] | None:
        return self.program.values[value].shape if value >= 0 else None

    def _results(self, number: int, results: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """An op's values, each with the last result of its shape in the module."""
        left, op = list(results), self.program.ops[number]
        if op.primitive == BARRIER:
            behind = self.program.ops[number : number + len(left)]
            yield from zip((one.outputs[0] for one in behind), left, strict=True)
            return
        for value in reversed(op.outputs):
            shape = self.program.values[value].shape
            fitting = [one for one in left if _shape(one) == shape]
            if fitting:
                yield value, fitting[-1]
                left = left[: left.index(fitting[-1])]

    def _layout(self, result: Any) -> LayoutPattern | None:
        sharding = compat.shardy_sharding_of(result)
        rank = len(getattr(result.type, "shape", ()))
        if sharding is None:
            return LayoutPattern((Dimension(),) * rank)
        if sharding not in self.known:
            self.known[sharding] = self._pattern(sharding)
        return self.known[sharding]

    def _pattern(self, sharding: Any) -> LayoutPattern | None:
        """None where a part of an axis cuts, or axes stand in another order than the mesh's."""
        dimensions = []
        for axes in compat.shardy_layout(sharding)[1]:
            names = tuple(name for name, _ in axes)
            if any(part is not None for _, part in axes):
                return None
            dimensions.append(Dimension(names))
        found = LayoutPattern(tuple(dimensions))
        return None if found.faults(self.mesh.names) else found

    def _boundaries(self, found: dict[int, LayoutPattern]) -> dict[int, LayoutPattern]:
        """With what enters a loop as it comes, and what is returned as it is made."""
        for op in self.program.ops:
            if op.primitive in ("enter", "return") and op.inputs[0] in found:
                found.setdefault(op.outputs[0], found[op.inputs[0]])
        for inside, outside in self.program.carries:
            if outside in found:
                found[inside] = found[outside]
        return found


def _main(module: Any) -> Any:
    """What JAX lowers a step to: the function that is called from outside."""
    functions = (view.operation for view in module.operation.regions[0].blocks[0].operations)
    return next(one for one in functions if str(one.attributes["sym_name"]).strip('"') == "main")


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value.type, "shape", ()))
