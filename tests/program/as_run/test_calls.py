"""What is kept in order, solvers and operations on sparse arrays are laid out op by op."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import sparse
from jax.extend.core import jaxpr_as_fun

from autoshard.lower.verify import verify
from autoshard.program.rewritten import on_platforms
from autoshard.program.trace import TraceError, trace
from autoshard.program.vocabulary import BARRIER
from autoshard.search.search import search
from tests.helpers import case, random_plan
from tests.newer_jax import needs_program_order, program_order
from tests.program.steps import f

ARGS = f(16, 16), f(32, 16)
MESH = {"x": 8}


def step(ordered: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """A gradient through what `ordered` wraps: a loop, a call, and one inside of the other."""

    def inner(w: Any, x: Any) -> Any:
        cosine = ordered(lambda x: jnp.cos(x) + jnp.ones_like(x))(jnp.where(x > 0, x, 0.5))
        turns = lax.scan(lambda c, _: (jnp.tanh(c @ w), None), cosine, None, length=2)[0]
        return turns + jnp.tanh(x @ w)

    return lambda w, x: w - jax.grad(lambda w: jnp.sum(ordered(inner)(w, x)))(w)


def as_written(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def kinds(fn: Callable[..., Any]) -> Counter[str]:
    return kinds_of(fn, *ARGS)


@needs_program_order
def test_without_an_order_the_ops_are_those_of_the_function() -> None:
    free = step(lambda fn: program_order(fn, enforce=False))
    assert kinds(free) == kinds(step(as_written))


@needs_program_order
def test_an_order_stands_between_the_ops_and_computes_what_jax_does() -> None:
    also = "strict_in_out" in inspect.signature(program_order).parameters
    strict = {"strict_in_out": True} if also else {}
    kept = step(lambda fn: program_order(fn, enforce=True, **strict))
    found = kinds(kept)
    assert found[BARRIER] > 20
    plain = kinds(step(as_written))
    assert {name: found[name] for name in ("dot_general", "tanh", "cos", "enter")} == {
        name: plain[name] for name in ("dot_general", "tanh", "cos", "enter")
    }
    arrays = [
        np.linspace(-1, 1, 16 * rows, dtype=np.float32).reshape(rows, 16) for rows in (16, 32)
    ]
    (run,) = jaxpr_as_fun(trace(kept, *ARGS).jaxpr)(*arrays)
    np.testing.assert_allclose(run, kept(*arrays), rtol=1e-6)


@needs_program_order
@pytest.mark.parametrize("enforce", [True, False])
def test_a_plan_of_it_is_obeyed(enforce: bool) -> None:
    fn = step(lambda fn: program_order(fn, enforce=enforce))
    plan = random_plan(case(fn, *ARGS, mesh=MESH), 1)
    arrays = [
        np.linspace(-1, 1, 16 * rows, dtype=np.float32).reshape(rows, 16) for rows in (16, 32)
    ]
    found = verify(plan, fn, *ARGS, concrete=tuple(arrays))
    assert found.agrees
    assert found.differences is not None


SPOTS = sparse.BCOO.fromdense(jnp.where(jnp.arange(256).reshape(16, 16) % 5 == 0, 1.0, 0.0))


def spread(values: Any, spots: Any, x: Any, w: Any) -> Any:
    """Gradients through sparse products: of the array, of its transpose and sampled."""

    def loss(values: Any, w: Any) -> Any:
        one = sparse.BCOO((values, spots), shape=(16, 16))
        hidden = jnp.tanh(one @ (x @ w))
        sampled = sparse.bcoo_dot_general_sampled(
            hidden, hidden, spots, dimension_numbers=(((1,), (1,)), ((), ()))
        )
        return jnp.sum(one.T @ hidden) + jnp.sum(sampled**2) + jnp.sum(one.todense() ** 2)

    return jax.grad(loss, (0, 1))(values, w)


def by_rows(values: Any, spots: Any, x: Any, w: Any) -> Any:
    rows = sparse.BCSR.from_bcoo(sparse.BCOO((values, spots), shape=(16, 16)))
    return rows @ (x @ w)


@pytest.mark.parametrize("fn", [spread, by_rows])
def test_operations_on_sparse_arrays_are_what_they_run(fn: Callable[..., Any]) -> None:
    args = SPOTS.data, SPOTS.indices, *(jnp.full(shape, 0.1) for shape in ((16, 8), (8, 4)))
    given = case(fn, *args, mesh=MESH)
    assert not [op for op in given.program.ops if op.primitive.startswith("bc")]
    for seed in (1, 2):
        found = verify(random_plan(given, seed), fn, *args, concrete=args)
        assert found.agrees, str(found)


def test_a_solver_in_a_solver_is_opened() -> None:
    def solved(a: Any, b: Any) -> Any:
        product = lambda x: a @ x  # noqa: E731
        inner = lambda _, y: jnp.linalg.solve(a, y)  # noqa: E731
        return lax.custom_linear_solve(product, b, solve=inner, transpose_solve=inner)

    assert "custom_linear_solve" not in kinds_of(jax.vmap(solved), f(8, 4, 4), f(8, 4))


def kinds_of(fn: Callable[..., Any], *args: Any) -> Counter[str]:
    return Counter(op.primitive for op in trace(fn, *args).ops)


ARGS_OF_TWO = f(16, 8), f(8, 4)


def by_platform(x: Any, w: Any) -> Any:
    return lax.platform_dependent(
        x, w, tpu=lambda x, w: jnp.sin(x @ w), cuda=lambda x, w: jnp.cos(x @ w)
    )


def test_of_what_platforms_run_one_is_the_program() -> None:
    program = trace(by_platform, *ARGS_OF_TWO)
    assert {"sin", "cos", "platform_index"} <= {op.primitive for op in program.ops}
    for platform, kept, gone in (("tpu", "sin", "cos"), ("cuda", "cos", "sin")):
        there = on_platforms(program, [platform])
        assert there.options["platforms"] == [platform]
        found = {op.primitive for op in there.ops}
        assert kept in found
        assert not found & {gone, "join", "platform_index"}
        assert there.fingerprint == trace(by_platform, *ARGS_OF_TWO, **there.options).fingerprint
    with pytest.raises(TraceError, match=r"platform_dependent at .*:\d+ has nothing for"):
        on_platforms(program, ["rocm"])
    plain = trace(jnp.sin, f(4))
    assert on_platforms(plain, ["tpu"]) is plain


def likelihood(factor: Any, x: Any) -> Any:
    """`jnp.diagonal` is one thing on TPUs and another elsewhere."""
    lower = jnp.tril(factor)
    return jnp.sum(jnp.log(jnp.diagonal(lower @ lower.T))) + jnp.mean((x @ lower) ** 2)


@pytest.mark.parametrize("machine", ["v5e-8", "h100-8"])
def test_a_plan_has_the_collectives_of_its_platform(machine: str) -> None:
    args = jnp.eye(32) + 0.1, jnp.full((64, 32), 0.5)
    step = jax.grad(likelihood)
    plan = search(trace(step, *args), machine, mesh=MESH, baselines=False)
    found = verify(plan, step, *args, concrete=args)
    assert found.agrees, str(found)
