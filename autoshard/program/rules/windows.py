"""Windows that slide over a dimension: convolution and pooling.

Shardy calls the spatial dimensions of a convolution a permutation (neighbours' parts are needed),
whatever the windows, and takes the spatial dimensions of a kernel's gradient for a plain sum. Both
are true only sometimes. With windows of `w` elements, `s` apart, these cases are told apart per
spatial dimension, in the order operand, kernel, result:

    tiles       (k w), w, k    windows touch and do not overlap (1x1 kernels, patches, pooling):
                               `k` passes through, `w` is summed against the kernel
    gaps        (k s), w, k    as tiles, with unused elements in between (strided 1x1 kernels)
    of kernels  (k t), k, t    the gradient of the kernel of tiles: `k` is summed, but Shardy takes
                               the dimension for (t k), so it stays whole
    of inputs   k, w, (k t)    the gradient of the input of tiles: `k` passes
    overlap     k, w, k        parts need a margin of their neighbours: PERMUTE
    long        n, w, t        the window is about as long as the dimension, as in the gradient of
                               an overlapping kernel: all of operand and kernel is needed

Kernel dimensions that are not summed stay whole.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from jax.extend.core import JaxprEqn

from autoshard.program.rules.record import FactorKind, Rule


@dataclass(frozen=True, slots=True)
class _Window:
    """One spatial dimension: where it is in operand, kernel (if any) and result, and its window."""

    operand: int
    kernel: int | None
    result: int
    size: int
    stride: int
    padding: tuple[int, int]
    operand_dilation: int
    window_dilation: int

    def case(self, length: int, parts: int) -> str:
        """Which case of the table it is, for an operand of `length` and a result of `parts`."""
        plain = self.padding == (0, 0) and self.operand_dilation == 1
        if plain and self.window_dilation == 1:
            if parts * self.size == length and (self.stride == self.size or parts == 1):
                return "tiles"
            if parts * self.stride == length and self.size < self.stride:
                return "gaps"
        apart = self.stride == 1 and self.window_dilation == parts > 1
        if plain and apart and self.size * parts == length:
            return "of kernels"
        if (
            self.window_dilation == self.stride == 1
            and self.padding[0] == self.size - 1
            and self.size <= self.operand_dilation
            and length * self.operand_dilation == parts
        ):
            return "of inputs"
        return "long" if 2 * self.size >= max(length, parts) else "overlap"


def convolution(equation: JaxprEqn, rule: Rule) -> Rule:
    """Shardy's rule of a convolution with the spatial dimensions told apart."""
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    dimensions = zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    windows = [
        _Window(
            operand,
            kernel,
            result,
            _shape(equation.invars[1])[kernel],
            parameters["window_strides"][n],
            tuple(parameters["padding"][n]),
            parameters["lhs_dilation"][n],
            parameters["rhs_dilation"][n],
        )
        for n, (operand, kernel, result) in enumerate(dimensions)
    ]
    return _amend(equation, rule, windows)


def pooling(equation: JaxprEqn, rule: Rule) -> Rule:
    """Shardy's rule of a `reduce_window` with the windowed dimensions told apart."""
    parameters = equation.params
    windows = [
        _Window(
            d,
            None,
            d,
            size,
            parameters["window_strides"][d],
            tuple(parameters["padding"][d]),
            parameters["base_dilation"][d],
            parameters["window_dilation"][d],
        )
        for d, size in enumerate(parameters["window_dimensions"])
    ]
    return _amend(equation, rule, windows)


def _amend(equation: JaxprEqn, rule: Rule, windows: list[_Window]) -> Rule:
    factors: dict[Hashable, tuple[int, FactorKind, str | None]] = {
        index: (factor.size, factor.kind, factor.operator)
        for index, factor in enumerate(rule.factors)
    }
    operands: list[list[Any]] = [list(tensor) for tensor in rule.operands]
    results: list[list[Any]] = [list(tensor) for tensor in rule.results]
    operand_shape, result_shape = _shape(equation.invars[0]), _shape(equation.outvars[0])
    for window in windows:
        length, parts = operand_shape[window.operand], result_shape[window.result]
        in_operand, in_kernel, in_result = _factors(window, length, parts)
        for label, size, kind in (*in_operand, *in_kernel, *in_result):
            operator = "sum" if kind is FactorKind.REDUCE else None
            factors[label] = size, kind, operator
        operands[0][window.operand] = _labels(in_operand)
        results[0][window.result] = _labels(in_result)
        if window.kernel is not None:
            operands[1][window.kernel] = _labels(in_kernel)
    return Rule.build(operands, results, factors)


_Labelled = tuple[Hashable, int, FactorKind]


def _factors(
    window: _Window, length: int, parts: int
) -> tuple[list[_Labelled], list[_Labelled], list[_Labelled]]:
    """The factors of the spatial dimension of operand, kernel and result, major first."""
    size = window.size
    inside = FactorKind.PASS if size == 1 else FactorKind.REPLICATE

    def factor(name: str, size: int, kind: FactorKind) -> _Labelled:
        return (name, window.operand), size, kind

    kernel = factor("w", size, inside)
    passing = factor("k", parts, FactorKind.PASS)
    match window.case(length, parts):
        case "tiles":
            summed = window.kernel is not None and size > 1
            tile = factor("w", size, FactorKind.REDUCE if summed else inside)
            return [passing, tile], [tile], [passing]
        case "gaps":
            step = factor("s", window.stride, FactorKind.REPLICATE)
            return [passing, step], [kernel], [passing]
        case "of kernels":
            summed = factor("k", size, FactorKind.REPLICATE if size > 1 else FactorKind.PASS)
            within = factor("t", parts, FactorKind.PASS)
            return [summed, within], [summed], [within]
        case "of inputs":
            outer = factor("k", length, FactorKind.PASS)
            within = factor("t", window.operand_dilation, FactorKind.PASS)
            return [outer], [kernel], [outer, within]
        case "long":
            return [factor("n", length, FactorKind.REPLICATE)], [kernel], [passing]
        case _:
            shifted = factor("k", min(length, parts), FactorKind.PERMUTE)
            return [shifted], [kernel], [shifted]


def _labels(factors: list[_Labelled]) -> list[Hashable]:
    """The labels of a dimension; a factor of size 1 stands alone or not at all."""
    return [label for label, size, _ in factors if size > 1] or [factors[0][0]]


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)
