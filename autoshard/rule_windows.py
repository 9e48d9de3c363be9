"""Windows that slide over a dimension: convolution and pooling.

Shardy calls the spatial dimensions of a convolution a permutation (neighbours' parts are needed),
whatever the windows, and takes the spatial dimensions of a kernel's gradient for a plain sum. Both
are true only sometimes, and three cases must be told apart per spatial dimension:

    tiles      windows of size w touch and do not overlap (1x1 kernels, patches, 2x2 pooling): the
               dimension is `(k w)`, `k` passes through and `w` is summed against the kernel
    overlap    parts need a margin of their neighbours: PERMUTE, and the kernel stays whole
    long       the window is about as long as the dimension (the gradient of a kernel): both stay
               whole, and each element of the result is computed alone
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from jax.extend.core import JaxprEqn

from autoshard.rule_record import FactorKind, Rule


@dataclass(frozen=True, slots=True)
class _Window:
    """One spatial dimension: its index in operand, kernel (if there is one) and result."""

    operand: int
    kernel: int | None
    result: int
    size: int
    stride: int
    plain: bool
    """Neither padding nor dilation."""


def convolution(equation: JaxprEqn, rule: Rule) -> Rule:
    """Shardy's rule of a convolution with the spatial dimensions told apart."""
    parameters = equation.params
    numbers = parameters["dimension_numbers"]
    kernel_shape = _shape(equation.invars[1])
    windows = [
        _Window(
            operand,
            kernel,
            result,
            kernel_shape[kernel],
            parameters["window_strides"][n],
            tuple(parameters["padding"][n]) == (0, 0)
            and parameters["lhs_dilation"][n] == parameters["rhs_dilation"][n] == 1,
        )
        for n, (operand, kernel, result) in enumerate(
            zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
        )
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
            tuple(parameters["padding"][d]) == (0, 0)
            and parameters["base_dilation"][d] == parameters["window_dilation"][d] == 1,
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
        inside, outside = ("window", window.operand), ("parts", window.operand)
        summed = window.kernel is not None
        whole = window.plain and parts * window.size == length
        if whole and (window.stride == window.size or parts == 1):
            of_operand, of_kernel, of_result = [outside, inside], [inside], [outside]
            factors[outside] = parts, FactorKind.PASS, None
            if window.size == 1:
                of_operand = [outside]
                factors[inside] = 1, FactorKind.PASS, None
            elif summed:
                factors[inside] = window.size, FactorKind.REDUCE, "sum"
            else:
                factors[inside] = window.size, FactorKind.REPLICATE, None
            if parts == 1:
                of_operand = [inside]
        elif 2 * window.size >= max(length, parts):
            start = ("whole", window.operand)
            of_operand, of_kernel, of_result = [start], [inside], [outside]
            factors[start] = length, FactorKind.REPLICATE, None
            factors[inside] = window.size, FactorKind.REPLICATE, None
            factors[outside] = parts, FactorKind.PASS, None
        else:
            of_operand, of_kernel, of_result = [outside], [inside], [outside]
            factors[outside] = min(length, parts), FactorKind.PERMUTE, None
            factors[inside] = window.size, FactorKind.REPLICATE, None
        operands[0][window.operand] = of_operand
        results[0][window.result] = of_result
        if window.kernel is not None:
            operands[1][window.kernel] = of_kernel
    return Rule.build(operands, results, factors)


def _shape(atom: Any) -> tuple[int, ...]:
    return tuple(atom.aval.shape)
