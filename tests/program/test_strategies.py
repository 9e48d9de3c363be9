"""The strategies of an op against brute force over all maps of axes to factors."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import pytest

from autoshard.program.rules.ask_shardy import FactorKind, Rule, rules_for
from autoshard.program.strategies import enumerate_strategies, is_layout_determined

MESHES = ((2,), (4,), (2, 2), (2, 4), (4, 2), (2, 2, 2), (1, 4), (3, 2))

EQUATIONS = {
    "matmul": (lambda a, b: a @ b, (8, 12), (12, 6)),
    "matmul, odd": (lambda a, b: a @ b, (9, 8), (8, 5)),
    "batched": (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (4, 6, 8), (4, 8, 2)),
    "merge": (lambda a: jnp.reshape(a, (8, 4)), (2, 4, 4)),
    "merge, major too small": (lambda a: jnp.reshape(a, (24,)), (2, 3, 4)),
    "split": (lambda a: jnp.reshape(a, (4, 2, 8)), (8, 8)),
    "sum": (lambda a: jnp.sum(a, axis=1), (4, 8, 2)),
    "max": (lambda a: jnp.max(a, axis=0), (8, 4)),
    "transpose": (lambda a: a.T, (4, 8)),
    "add": (lambda a, b: a + b, (4, 8), (4, 8)),
}


def rule_of(name: str) -> tuple[Rule, tuple[int, ...]]:
    """The rule of the only equation of an example, and its result's shape."""
    fn, *shapes = EQUATIONS[name]
    jaxpr = jax.make_jaxpr(fn)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    equation = jaxpr.eqns[-1]
    return rules_for([equation])[0], equation.outvars[0].aval.shape


def layout(
    rule: Rule,
    mapping: tuple[tuple[int, ...], ...],
    assignment: tuple[int, ...],
    mesh: tuple[int, ...],
) -> tuple[int, ...] | None:
    """The layout that an assignment gives to a tensor, or None where its parts do not exist.

    A merged dimension is a row of factors, major first. Its shards, in mesh order of the axes,
    must be contiguous equal parts; they are followed here element by element.
    """
    result = [-1] * len(mesh)
    for dimension, factors in enumerate(mapping):
        axes = [axis for axis, factor in enumerate(assignment) if factor in factors]
        for axis in axes:
            result[axis] = dimension
        sizes = [rule.factors[factor].size for factor in factors]
        whole = math.prod(sizes)
        parts = math.prod(mesh[axis] for axis in axes)
        if whole % parts:
            return None
        for place in itertools.product(*(range(mesh[axis]) for axis in axes)):
            # What the layout says: shard number, the axes in mesh order, the first one major.
            number = 0
            for axis, index in zip(axes, place, strict=True):
                number = number * mesh[axis] + index
            says = set(range(number * whole // parts, (number + 1) * whole // parts))
            # What the op computes: per factor a contiguous range, its axes in mesh order.
            ranges = []
            for factor, size in zip(factors, sizes, strict=True):
                own = [k for k, axis in enumerate(axes) if assignment[axis] == factor]
                count = math.prod(mesh[axes[k]] for k in own)
                if size % count:
                    return None
                position = 0
                for k in own:
                    position = position * mesh[axes[k]] + place[k]
                ranges.append(range(position * size // count, (position + 1) * size // count))
            computed = set()
            for index in itertools.product(*ranges):
                flat = 0
                for coordinate, size in zip(index, sizes, strict=True):
                    flat = flat * size + coordinate
                computed.add(flat)
            if computed != says:
                return None
    return tuple(result)


def brute_force(rule: Rule, mesh: tuple[int, ...]) -> dict[tuple[int, ...], tuple[object, ...]]:
    """Every possible map of axes to factors (or none), with the layouts that it fixes."""
    shardable = [
        k
        for k, factor in enumerate(rule.factors)
        if factor.kind in (FactorKind.PASS, FactorKind.REDUCE) and factor.size > 1
    ]
    options = [[-1, *shardable] if size > 1 else [-1] for size in mesh]
    found = {}
    for assignment in itertools.product(*options):
        divides = all(
            factor.size % math.prod(mesh[a] for a, f in enumerate(assignment) if f == k) == 0
            for k, factor in enumerate(rule.factors)
        )
        layouts = [
            layout(rule, mapping, assignment, mesh) for mapping in (*rule.operands, *rule.results)
        ]
        if divides and None not in layouts:
            found[assignment] = tuple(layouts)
    return found


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", EQUATIONS)
def test_strategies_are_those_of_brute_force(name: str, mesh: tuple[int, ...]) -> None:
    rule, shape = rule_of(name)
    strategies = enumerate_strategies(rule, mesh, [shape])
    expected = brute_force(rule, mesh)
    found: dict[tuple[int, ...], tuple[object, ...]] = {}
    for row in range(len(strategies)):
        if strategies.scattered[row]:
            continue
        assignment = tuple(strategies.assignment[row].tolist())
        assert assignment not in found
        sides = (*strategies.reads, *strategies.stored)
        found[assignment] = tuple(tuple(side[row].tolist()) for side in sides)
    assert found == expected
    assert tuple(strategies.assignment[0]) == (-1,) * len(mesh)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", ["matmul", "matmul, odd", "batched", "sum"])
@pytest.mark.parametrize("last", [(), (0,), (1,), (0, 1)], ids=str)
def test_partial_sums_are_scattered_wherever_they_fit(
    name: str, mesh: tuple[int, ...], last: tuple[int, ...]
) -> None:
    """All reduced axes together, each onto a dimension where it is the minor-most in mesh order;
    or all but the last ones."""
    rule, shape = rule_of(name)
    strategies = enumerate_strategies(rule, mesh, [shape], last=last)
    found = {
        (tuple(strategies.assignment[row].tolist()), tuple(strategies.stored[0][row].tolist()))
        for row in range(len(strategies))
        if strategies.scattered[row]
    }
    assert len(found) == strategies.scattered.sum()
    expected = set()
    for assignment, layouts in brute_force(rule, mesh).items():
        written = layouts[-1]
        reduced = [
            axis
            for axis, factor in enumerate(assignment)
            if factor >= 0 and rule.factors[factor].kind is FactorKind.REDUCE
        ]
        first = [axis for axis in reduced if axis not in last]
        ways = [
            (axes, targets)
            for axes in (reduced, first)
            for targets in itertools.product(range(len(shape)), repeat=len(axes))
        ]
        for onto, targets in ways:
            stored = list(written)  # type: ignore[call-overload]
            for axis, target in zip(onto, targets, strict=True):
                stored[axis] = target
            fits = all(
                size % math.prod(mesh[a] for a, d in enumerate(stored) if d == k) == 0
                for k, size in enumerate(shape)
            )
            minor = all(
                not any(written[later] == target for later in range(axis + 1, len(mesh)))  # type: ignore[index]
                for axis, target in zip(onto, targets, strict=True)
            )
            if onto and fits and minor:
                expected.add((assignment, tuple(stored)))
    assert found == expected


def test_a_maximum_is_never_scattered() -> None:
    rule, shape = rule_of("max")
    strategies = enumerate_strategies(rule, (2, 2), [shape])
    assert strategies.reduced.any()
    assert not strategies.scattered.any()


def test_what_is_settled_in_steps_is_scattered_over_some_axes() -> None:
    rule, shape = rule_of("matmul")
    plain, stepped = (enumerate_strategies(rule, (2, 2), [shape], last=last) for last in ((), (0,)))
    assert not plain.in_steps.any()
    both = stepped.reduced.all(axis=1)
    onto = {tuple(row) for row in stepped.onto[both & stepped.in_steps].tolist()}
    assert onto == {(False, True)}
    assert len(stepped) == len(plain) + stepped.in_steps.sum()


def test_which_ops_the_layout_decides() -> None:
    decided = {name: is_layout_determined(rule_of(name)[0]) for name in EQUATIONS}
    assert decided == {
        "matmul": False,
        "matmul, odd": False,
        "batched": False,
        "merge": True,
        "merge, major too small": True,
        "split": True,
        "sum": False,
        "max": False,
        "transpose": True,
        "add": True,
    }
