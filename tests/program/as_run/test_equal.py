"""Equal sums and products are one op with one collective, for the plan as for the compiler."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives, verify_written
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import case, concrete_like, random_plan, toy_machine
from tests.program.steps import f

MESH = {"x": 8}


def normalized_twice(x: Any, w: Any) -> Any:
    """The sum of squares is written twice, and so are the squares."""
    return x / jnp.sqrt(jnp.sum(x * x, axis=0)), jnp.log(jnp.sum(x * x, axis=0)) @ w


def two_products(x: Any, w: Any) -> Any:
    """Both results of a step are of one product."""
    return jnp.tanh(x.T @ x) @ w, jnp.sum(jnp.exp(x.T @ x))


def in_a_loop(x: Any, w: Any) -> Any:
    """A body that takes a mean of the batch for each of two readers."""

    def body(carry: Any, _: Any) -> Any:
        centred = carry - jnp.mean(carry, axis=0)
        return centred @ w, jnp.mean(carry, axis=0) * 2

    return lax.scan(body, x, None, length=3)


def equal_calls(x: Any, w: Any) -> Any:
    """One function is called twice with the same arrays."""
    called = jax.jit(lambda a, b: jnp.sum(a @ b, axis=0))
    return called(x, w) * 2, jnp.exp(called(x, w))


STEPS = {
    normalized_twice: {"reduce_sum": 1, "dot_general": 1},
    two_products: {"reduce_sum": 1, "dot_general": 2},
    in_a_loop: {"reduce_sum": 1, "dot_general": 1},
    equal_calls: {"reduce_sum": 1, "dot_general": 1},
}
ARGS = f(64, 16), f(16, 16)


def sums_and_products(fn: Callable[..., Any]) -> Counter[str]:
    program = trace(fn, *ARGS)
    return Counter(
        op.primitive for op in program.ops if op.primitive in ("reduce_sum", "dot_general")
    )


@pytest.mark.parametrize("fn", STEPS)
def test_equal_ones_are_one_op(fn: Callable[..., Any]) -> None:
    assert sums_and_products(fn) == STEPS[fn]
    assert not trace(fn, *ARGS).dead_ops


@pytest.mark.parametrize("fn", STEPS)
def test_every_judge_finds_one_collective(fn: Callable[..., Any]) -> None:
    plan = random_plan(case(fn, *ARGS, mesh=MESH), 1)
    for explicit in (False, True):
        lowered = lower(plan, fn, *ARGS, explicit=explicit)
        comparison = (verify_written if explicit else verify_collectives)(lowered)
        assert comparison.agrees, str(comparison)
        assert not numeric_differences(lowered, fn, concrete_like(ARGS))


def hidden_twice(x: Any, w: Any) -> Any:
    """Two products read the same function of the same array."""
    return jnp.tanh(x) @ w, jnp.einsum("ij,jk->ik", jnp.tanh(x), w * 2)


def sorted_twice(x: Any, w: Any) -> Any:
    """A sort and a cumulative sum read the same function, and a plain sum does."""
    return jnp.sort(x * 2, axis=0), jnp.cumsum(x * 2, axis=0), jnp.sum(x * 2, axis=1)


@pytest.mark.parametrize(
    ("fn", "cheap", "left"), [(hidden_twice, "tanh", 1), (sorted_twice, "mul", 2)]
)
def test_equal_functions_that_products_read_have_one_copy(
    fn: Callable[..., Any], cheap: str, left: int
) -> None:
    """The rows of both operands are gathered once, as the compiler does."""
    args = f(64, 256), f(256, 4096)
    program = trace(fn, *args)
    assert [op.primitive for op in program.ops if op.inputs[0] == 0].count(cheap) == left
    pins = ["pin [0] [x, None]", "pin [1] [None, x]"]
    pins += [f"pin result[{number}] [None, x]" for number in (0, 1)]
    plan = search(program, toy_machine(8), mesh=MESH, requirements=pins, baselines=False)
    text = lower(plan, fn, *args).lower().compile().as_text()
    made = re.findall(r" (all-gather|all-to-all)(?:-start)?\(", text)
    planned = [one.kind.replace("_", "-") for one in plan.moves if one.kind != "all_slice"]
    assert len(planned) == 1
    assert planned == made


def test_the_compiler_makes_as_many_as_are_planned() -> None:
    """Where both sums are over cut rows, one all-reduce is paid and made."""
    given = case(normalized_twice, *ARGS, mesh=MESH)
    plans = [random_plan(given, seed) for seed in range(12)]
    planned = [[one for one in plan.moves if one.kind == "all_reduce"] for plan in plans]
    plan = next(plan for plan, moves in zip(plans, planned, strict=True) if len(moves) == 1)
    text = lower(plan, normalized_twice, *ARGS).lower().compile().as_text()
    assert len(re.findall(r" all-reduce(?:-start)?\(", text)) == 1


def test_what_is_kept_apart_stays_apart() -> None:
    """Barriers, checkpoints, effects and other parameters."""

    def apart(x: Any, w: Any) -> Any:
        again = lax.optimization_barrier(x)
        first = jax.checkpoint(lambda a: jnp.sin(a @ w))
        grads = jax.grad(lambda a: jnp.sum(first(a)))(x)
        return jnp.sum(x, 0), jnp.sum(again, 0), jnp.sum(x, 1), grads

    assert sums_and_products(apart) == {"reduce_sum": 3, "dot_general": 2}


def test_literals_differ_by_value_and_type() -> None:
    def scaled(x: Any, w: Any) -> Any:
        return [jnp.sum(x * one) for one in (2.0, 3.0, 2.0)], jnp.sum(w + 0.0), jnp.sum(w + -0.0)

    assert sums_and_products(scaled) == {"reduce_sum": 4}
