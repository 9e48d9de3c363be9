"""Functions of which the user says how they may be cut: `autoshard.kernel`.

    @autoshard.kernel("b h q d, b h k d, b h k d -> b h q d", replicate=("q", "k", "d"))
    def attend(q, k, v): ...

A call of such a function is one op of a plan, whatever it holds: Pallas calls, FFI calls, functions
with derivative rules of their own. Each device calls it anew, on its parts. Outside of plans it is
the function itself. `vmap` gives it one more factor. Its gradients are ops of the same kind, whose
rules follow from its own, since parts of a factor that passes through are computed apart:

    cotangents    the dimensions of their operands; a factor that the operand lacks is summed over
    a sum         of its terms all have the same cotangent

They call the function again, and its derivative. Where some operands lack a factor that others
have (weights that all examples share), the gradients of each kind are ops of their own. A function
that saves more for its derivative is two: forward and backward, each with a rule, joined by
`jax.custom_vjp`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from autoshard import compat
from autoshard.program.rules.record import Factor, FactorKind, Rule
from autoshard.program.rules.user import UserRule, fitted, parsed_rule
from autoshard.units import counted


@dataclass(frozen=True, slots=True)
class Said:
    """What a user says of the work of a call on whole arrays; None where it is counted.

    Attributes:
      flops: FLOP, of the matrix units.
      bytes: between memory and the chip.
      dtype: of the products.
    """

    flops: float | None = None
    bytes: float | None = None
    dtype: str | None = None

    def backward(self, share: float) -> Said:
        """Of gradients of a share of the operands: the function again, and two products for each
        of its own for all of them. What they move is what they read and write.
        """
        flops = None if self.flops is None else self.flops * (1.0 + 2.0 * share)
        return Said(flops, dtype=self.dtype)

    def times(self, count: int) -> Said:
        """Of so many calls at once."""
        flops, moved = (None if one is None else one * count for one in (self.flops, self.bytes))
        return Said(flops, moved, self.dtype)


@dataclass(frozen=True, slots=True)
class Ruled:
    """The rule of a call, and what is said of its work."""

    rule: Rule
    said: Said

    def batched(self, size: int, operands: Sequence[bool]) -> Ruled:
        """Of many calls at once, with a dimension more in front of some operands and all results.

        >>> rule = Rule.parse("([i, j], [j])->([i, j]) {i=8, j=4}")
        >>> print(Ruled(rule, Said()).batched(2, [True, False]).rule)
        ([batch, i, j], [j])->([batch, i, j]) {batch=2, i=8, j=4}
        """
        old, names = self.rule, {one.name for one in self.rule.factors}
        name = next(n for k in range(len(names) + 1) if (n := f"batch{k or ''}") not in names)

        def shifted(tensor: Any, *, more: bool) -> Any:
            moved = tuple(tuple(k + 1 for k in dimension) for dimension in tensor)
            return ((0,), *moved) if more else moved

        rule = Rule(
            (Factor(name, size), *old.factors),
            tuple(shifted(one, more=has) for one, has in zip(old.operands, operands, strict=True)),
            tuple(shifted(one, more=True) for one in old.results),
        )
        return Ruled(rule, self.said.times(size))


def kernel(
    rule: str | UserRule,
    *,
    reduction: Mapping[str, str] | None = None,
    replicate: Sequence[str] = (),
    sizes: Mapping[str, int] | None = None,
    flops: float | Callable[..., float] | None = None,
    bytes: float | Callable[..., float] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a function with the rule by which its calls may be cut over devices.

    The function may take and return pytrees of arrays, of which the rule names the leaves in order;
    keyword arguments are static. On a device it is called with its parts of the arrays, so it must
    compute parts of its results from parts of its operands, as the rule says; `autoshard.verify`
    holds it to that. It may be differentiated in reverse.

    Args:
      rule: one name for each dimension, as ``"b h q d, b h k d, b h k d -> b h q d"``, or a
        `UserRule`.
      reduction: factors of which parts give partial results, and how these are joined.
      replicate: factors that stay whole.
      sizes: of the factors of dimensions that are made of several.
      flops: FLOP of a call on whole arrays, or a function of its operands' shapes (objects with
        `shape` and `dtype`). By default what the function holds is counted, kernels by their grids.
      bytes: likewise what it reads and writes of memory; by default operands and results, once.

    Raises:
      NoRuleError: the rule cannot be read; once it is called, the rule does not fit its arrays.
    """
    if isinstance(rule, str):
        rule = UserRule(rule, reduction or {}, tuple(replicate), (), sizes or {})
    elif reduction or replicate or sizes:
        raise TypeError("a UserRule says itself what is reduced, replicated, and how large it is")
    parsed_rule(rule)
    given = rule

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(fn, "__name__", type(fn).__name__)

        @functools.wraps(fn)
        def call(*args: Any, **static: Any) -> Any:
            operands, tree = jax.tree.flatten(args)
            operands = list(map(jnp.asarray, operands))
            structures: list[Any] = []

            def flat(*arrays: Any) -> list[Any]:
                results, structure = jax.tree.flatten(
                    fn(*jax.tree.unflatten(tree, arrays), **static)
                )
                structures.append(structure)
                return results

            shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in operands]
            said = Said(_number(flops, shapes), _number(bytes, shapes))

            def ruled(closed: Any) -> Ruled:
                return Ruled(_fitted(given, closed, name), said)

            results = _derivable(flat, name, ruled)(*operands)
            return jax.tree.unflatten(structures[0], results)

        return call

    return decorate


def call_with_rule(
    fn: Callable[..., list[Any]],
    operands: Sequence[Any],
    rule: Rule,
    *,
    name: str,
    said: Said | None = None,
) -> list[Any]:
    """A call that may be cut by a rule, where it is not differentiated any more."""
    ruled = Ruled(rule, said or Said())
    return compat.ruled_call(fn, operands, lambda _: ruled, name=name)


def _number(said: float | Callable[..., float] | None, shapes: Sequence[Any]) -> float | None:
    if said is None:
        return None
    return float(said(*shapes) if callable(said) else said)


def _fitted(rule: UserRule, closed: Any, name: str) -> Rule:
    sides = ([aval.shape for aval in avals] for avals in (closed.in_avals, closed.out_avals))
    return fitted(rule, *sides, where=f"the function {name!r}")


def _derivable(
    fn: Callable[..., list[Any]], name: str, rule: Callable[[Any], Ruled]
) -> Callable[..., list[Any]]:
    """A call of `fn` that may be differentiated in reverse, as often as one likes."""
    made: list[Ruled] = []

    def noted(closed: Any) -> Ruled:
        made.append(rule(closed))
        return made[-1]

    def run(*operands: Any) -> list[Any]:
        return compat.ruled_call(fn, operands, noted, name=name)

    def forward(*operands: Any) -> Any:
        return _derivable(fn, name, noted)(*operands), operands

    def backward(operands: Any, cotangents: Any) -> Any:
        results = jax.eval_shape(fn, *operands)
        inexact = [k for k, one in enumerate(results) if jnp.issubdtype(one.dtype, jnp.inexact)]
        errors = [cotangents[k] for k in inexact]
        found: list[Any] = [None] * len(operands)
        moving = [k for k, one in enumerate(operands) if jnp.issubdtype(one.dtype, jnp.inexact)]
        for wanted in alike(made[0].rule, moving):
            said = made[0].said.backward(len(wanted) / len(moving))
            behind = Ruled(backward_rule(made[0].rule, wanted, inexact), said)
            pulled = _pulled(fn, wanted, inexact, len(operands))
            call = _derivable(pulled, f"{name}_backward", lambda _, one=behind: one)
            for k, gradient in zip(wanted, call(*operands, *errors), strict=True):
                found[k] = gradient
        return tuple(found)

    called = jax.custom_vjp(run)
    called.defvjp(forward, backward)
    return called


def _pulled(
    fn: Callable[..., list[Any]], wanted: Sequence[int], inexact: Sequence[int], count: int
) -> Callable[..., list[Any]]:
    """From operands and cotangents to the gradients of the operands `wanted`."""

    def run(*arrays: Any) -> list[Any]:
        operands, errors = arrays[:count], list(arrays[count:])

        def of(*moved: Any) -> list[Any]:
            given = list(operands)
            for k, one in zip(wanted, moved, strict=True):
                given[k] = one
            results = fn(*given)
            return [results[k] for k in inexact]

        _, pull = jax.vjp(of, *(operands[k] for k in wanted))
        return list(pull(errors))

    return run


def alike(rule: Rule, operands: Sequence[int]) -> list[list[int]]:
    """Operands in groups that lack the same of the factors that may be cut."""
    free = {k for k, one in enumerate(rule.factors) if one.kind is not FactorKind.REPLICATE}
    groups: dict[frozenset[int], list[int]] = {}
    for number in operands:
        has = {k for dimension in rule.operands[number] for k in dimension}
        groups.setdefault(frozenset(free - has), []).append(number)
    return list(groups.values())


def backward_rule(rule: Rule, wanted: Sequence[int], inexact: Sequence[int]) -> Rule:
    """The rule of the gradients of some operands, which all lack the same factors.

    Operands are those of the function, and the cotangents of its results `inexact`.

    >>> rule = Rule.parse("([i, j], [j])->([i, j]) {i=8, j=4}")
    >>> print(backward_rule(rule, [0], [0]))
    ([i, j], [j], [i, j])->([i, j]) {i=8, j=4}
    >>> print(backward_rule(rule, [1], [0]))
    ([j, i], [i], [j, i])->([i]) {i=4, j=8} reduction={j}
    """
    results = [rule.operands[k] for k in wanted]
    has = {k for tensor in results for dimension in tensor for k in dimension}
    factors = {}
    for number, one in enumerate(rule.factors):
        kind, operator = FactorKind.REPLICATE, None
        joined = one.kind is FactorKind.REDUCE and one.operator == "sum"
        if one.kind is FactorKind.PASS or joined:
            kind = FactorKind.PASS if number in has else FactorKind.REDUCE
            operator = None if number in has else "sum"
        factors[number] = one.size, kind, operator
    return Rule.build([*rule.operands, *(rule.results[k] for k in inexact)], results, factors)


def smaller_call(equation: Any, arrays: Sequence[Any]) -> list[Any]:
    """The results of a call on arrays that are shorter along some of its factors.

    Raises:
      ValueError: they are shorter than whole factors allow.
    """
    params = equation.params
    ruled = params["rule"]
    return compat.ruled_call(
        params["fn"],
        arrays,
        lambda closed: Ruled(_smaller(ruled.rule, closed), ruled.said),
        name=params["name"],
    )


def _smaller(rule: Rule, closed: Any) -> Rule:
    """A rule with the sizes of its factors as the arrays of a closed jaxpr have them."""
    sizes = [one.size for one in rule.factors]
    avals = (*closed.in_avals, *closed.out_avals)
    for tensor, aval in zip((*rule.operands, *rule.results), avals, strict=True):
        for dimension, new in zip(tensor, aval.shape, strict=True):
            inner = math.prod(rule.factors[k].size for k in dimension[1:])
            if new % inner:
                raise ValueError(
                    f"a dimension of {counted(new, 'element')} is not a multiple of {inner}"
                )
            for number in dimension[:1]:
                sizes[number] = min(sizes[number], new // inner)
    factors = (replace(one, size=size) for one, size in zip(rule.factors, sizes, strict=True))
    return replace(rule, factors=tuple(factors))
