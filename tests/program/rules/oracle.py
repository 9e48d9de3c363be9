"""An executable meaning of a sharding rule, by which any rule of any equation can be checked.

The equation is computed on two sets of operands, A and B, and on operands that are A in one half of
a factor and B in the other half. Operands that do not have the factor are always A.

* PASS: the half of the result that belongs to A's half must be what A alone gives there. So that
  half can be computed from that half of the operands: nothing has to be sent.
* REDUCE with operator +: f(A, A) + f(B, B) = f(A, B) + f(B, A), the halves being the two arguments.
  That holds if and only if f(x, y) = g(x) + h(y) (a constant included): parts can be computed apart
  and added. The same equation is asked of the other operators.

No primitive needs a word of its own, so this cannot share a mistake with the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from autoshard.program.rules.ask_shardy import Factor, FactorKind, Rule

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}


def operand_values(
    function: Callable[..., Any], arguments: Sequence[Any]
) -> list[tuple[JaxprEqn, list[Any]]]:
    """Every equation of `function` with the operands that it has when called on `arguments`."""
    closed = jax.make_jaxpr(function)(*arguments)
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, jax.tree.leaves(arguments), strict=True))
    found: list[tuple[JaxprEqn, list[Any]]] = []

    def run(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            operands = [
                atom.val if isinstance(atom, Literal) else values[atom] for atom in equation.invars
            ]
            body = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
            if equation.primitive.name in ("jit", "pjit", "custom_jvp_call", "custom_vjp_call"):
                values.update(zip(body.jaxpr.constvars, body.consts, strict=True))
                values.update(zip(body.jaxpr.invars, operands, strict=True))
                run(body.jaxpr)
                results = [
                    atom.val if isinstance(atom, Literal) else values[atom]
                    for atom in body.jaxpr.outvars
                ]
            else:
                found.append((equation, operands))
                results = apply(equation, operands)
            values.update(zip(equation.outvars, results, strict=True))

    run(closed.jaxpr)
    return found


def apply(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """The equation computed on one device, whole."""
    parameters = equation.primitive.get_bind_params(equation.params)
    results = equation.primitive.bind(*operands, **parameters)
    return list(results) if equation.primitive.multiple_results else [results]


def half_mask(rule: Rule, tensor: Sequence[Sequence[int]], shape: Sequence[int], factor: int):
    """Which elements of a tensor lie in the first half of `factor`; None without that factor."""
    for dimension, indices in enumerate(tensor):
        if factor not in indices:
            continue
        sizes = [rule.factors[i].size for i in indices]
        assert np.prod(sizes) == shape[dimension], f"{rule} does not fit {shape}"
        position = indices.index(factor)
        minor = int(np.prod(sizes[position + 1 :]))
        coordinate = np.arange(shape[dimension]) // minor % sizes[position]
        mask = coordinate < (sizes[position] + 1) // 2
        return mask.reshape([-1 if d == dimension else 1 for d in range(len(shape))])
    return None


def broken_promise(
    rule: Rule, index: int, equation: JaxprEqn, first: Sequence[Any], second: Sequence[Any]
) -> str | None:
    """What is false in factor `index` of `rule`, tried on operands A and B; None if it holds."""
    factor = rule.factors[index]
    masks = [
        half_mask(rule, t, np.shape(a), index) for t, a in zip(rule.operands, first, strict=True)
    ]

    def mixed(half: bool, other: bool) -> list[np.ndarray]:
        """The results where one half of the factor comes from A (True) or B, and so the other."""
        sets = {True: first, False: second}
        operands = [
            a if mask is None else jnp.where(mask, sets[half][n], sets[other][n])
            for n, (a, mask) in enumerate(zip(first, masks, strict=True))
        ]
        return [plain(result) for result in apply(equation, operands)]

    if factor.kind is FactorKind.REDUCE:
        return _broken_reduction(factor, mixed)
    both = mixed(True, True)
    for half in (True, False):
        results = mixed(half, not half)
        for number, (expected, result) in enumerate(zip(both, results, strict=True)):
            mask = half_mask(rule, rule.results[number], equation.outvars[number].aval.shape, index)
            own = np.asarray(True) if mask is None else mask == half
            own = own.reshape(own.shape + (1,) * (expected.ndim - own.ndim)) if own.ndim else own
            own = np.broadcast_to(own, expected.shape)
            # Not to the last bit: a library may order its sums by the position in memory.
            if not np.allclose(expected[own], result[own], rtol=1e-5, atol=1e-6, equal_nan=True):
                return f"result {number} of a part depends on another part of {factor.name}"
    return None


def _broken_reduction(factor: Factor, mixed: Callable[[bool, bool], list[Any]]) -> str | None:
    combine = COMBINE[factor.operator or ""]
    same = zip(mixed(True, True), mixed(False, False), strict=True)
    crossed = zip(mixed(True, False), mixed(False, True), strict=True)
    for one, two in zip(same, crossed, strict=True):
        left, right = combine(*one), combine(*two)
        if not np.allclose(left, right, rtol=1e-4, atol=1e-4, equal_nan=True):
            return f"parts of {factor.name} cannot be combined with {factor.operator}"
    return None


def plain(array: Any) -> np.ndarray:
    """A NumPy array, of the bits if `array` holds random keys, of float32 if it is shorter."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if array.dtype == jnp.bfloat16:
        array = array.astype(jnp.float32)
    return np.asarray(array)
