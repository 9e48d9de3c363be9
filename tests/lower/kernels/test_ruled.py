"""Functions with rules of their own, and FFI calls with the user's: cut, and held to all judges."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard import compat
from autoshard.lower.spmd import LoweringError, lower
from autoshard.lower.verify import verify
from autoshard.plan.plan import Plan
from autoshard.program.rules.user import UserRule
from autoshard.search.search import search
from tests.helpers import MESHES, Case, best_plan, case, concrete_like, random_plan, toy_machine
from tests.program.kernels.functions import f
from tests.program.kernels.ruled_functions import CHOLESKY, attend, cholesky, normed, product


def layers(weights: Any, x: Any) -> Any:
    """Rematerialised layers in a scan: attention of kernels, shared weights, a product per row."""

    @jax.checkpoint
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        y = normed(x, w["n"], 0)
        q, k, v = (jnp.einsum("btd,dhk->bhtk", y, w[name]) for name in ("q", "k", "v"))
        x = x + jnp.einsum("bhtk,hkd->btd", attend(q, k, v), w["o"])
        return x + jax.vmap(product, (0, None))(x, w["m"]), None

    def loss(weights: Any) -> Any:
        return jnp.mean(jax.lax.scan(layer, x, weights)[0] ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


SHAPES = {"q": (16, 4, 8), "k": (16, 4, 8), "v": (16, 4, 8), "o": (4, 8, 16), "m": (16, 16)}
WEIGHTS = {name: f(2, *shape) for name, shape in (SHAPES | {"n": (16,)}).items()}
STEP = WEIGHTS, f(4, 16, 16)


def small(weights: Any, x: Any) -> Any:
    """One attention of rows with themselves, and its gradients."""

    def loss(weights: Any) -> Any:
        y = normed(x, weights["n"], 0)
        rows = jax.vmap(jax.vmap(product, (0, None)), (0, None))(attend(y, y, y), weights["m"])
        return jnp.mean(rows**2)

    return jax.grad(loss)(weights)


SMALL = {"n": f(8), "m": f(8, 8)}, f(4, 4, 16, 8)


def ruled(given: Case) -> list[Any]:
    return [op for op in given.program.ops if op.primitive == compat.RULED]


def is_cut(plan: Any, op: Any) -> bool:
    return any(factor >= 0 for factor in plan.decisions.assignment[op.index] or ())


def test_the_best_plan_cuts_every_call_and_holds_before_all_judges() -> None:
    given = case(small, *SMALL, mesh=MESHES["2x4"])
    plan = best_plan(given)
    assert len(ruled(given)) == 7
    assert all(is_cut(plan, op) for op in ruled(given))
    checked = verify(plan, small, *SMALL, concrete=concrete_like(SMALL))
    assert checked.agrees, str(checked)


@pytest.mark.long
@pytest.mark.parametrize("mesh", ["8", "2x4", "2x2x2"])
def test_plans_of_calls_in_rematerialised_layers_hold_before_all_judges(mesh: str) -> None:
    given = case(layers, *STEP, mesh=MESHES[mesh])
    checked = verify(random_plan(given, 3), layers, *STEP, concrete=concrete_like(STEP))
    assert checked.agrees, str(checked)


@pytest.fixture(scope="module")
def matrices() -> Any:
    """Positive definite ones; jaxlib finds LAPACK when it decomposes the first one."""
    jnp.linalg.cholesky(jnp.eye(2))
    return definite(8, 6)


def definite(count: int, size: int) -> Any:
    rng = np.random.default_rng(0)
    square = rng.standard_normal((count, size, size)).astype(np.float32)
    return square @ square.transpose(0, 2, 1) + size * np.eye(size, dtype=np.float32)


def test_an_ffi_call_with_a_rule_runs_on_parts(matrices: Any) -> None:
    """LAPACK's Cholesky decomposition of the matrices that a device has."""

    def step(matrices: Any) -> Any:
        found, worked = cholesky(matrices)
        return jnp.tril(found) * 2, worked

    given = case(step, matrices, mesh=MESHES["2x4"], user_rules=CHOLESKY)
    plan = best_plan(given)
    (op,) = (op for op in given.program.ops if op.primitive == compat.FFI)
    assert is_cut(plan, op)
    lowered = lower(plan, step, matrices)
    found, worked = lowered.jit()(matrices)
    np.testing.assert_allclose(found, 2 * np.linalg.cholesky(matrices), rtol=1e-5)
    assert not np.any(worked)
    text = lowered.lower(platforms=("cpu",)).as_text()
    (line,) = (one for one in text.splitlines() if "custom_call @lapack_spotrf_ffi" in one)
    assert "tensor<1x6x6xf32>" in line
    checked = verify(plan, step, matrices, concrete=(matrices,))
    assert checked.agrees, str(checked)


def test_a_function_around_an_ffi_call_is_called_anew_on_parts(matrices: Any) -> None:
    """Its attributes may say sizes then."""
    decorated = autoshard.kernel("b i j -> b i j, b", replicate=("i", "j"))(cholesky)

    def step(matrices: Any) -> Any:
        return jnp.tril(decorated(matrices)[0]) * 2

    given = case(step, matrices, mesh=MESHES["8"])
    plan = best_plan(given)
    assert [is_cut(plan, op) for op in ruled(given)] == [True]
    checked = verify(plan, step, matrices, concrete=(matrices,))
    assert checked.agrees, str(checked)


@autoshard.kernel("i j -> i j")
def padded(x: Any) -> Any:
    """Eight rows, whatever it is given."""
    return jnp.zeros((8, x.shape[1]), x.dtype).at[: x.shape[0]].set(x)


@autoshard.kernel("i j -> i j")
def paired(x: Any) -> Any:
    """It knows how many there are."""
    return jnp.flip(x.reshape(4, 2, 6), 1).reshape(8, 6)


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (padded, "of parts [(1, 6)] it makes [(8, 6)], not [(1, 6)]"),
        (paired, "it does not run on parts [(1, 6)]: cannot reshape"),
    ],
)
def test_a_function_of_other_parts_than_its_rule_says_is_refused(fn: Any, why: str) -> None:
    plan = best_plan(case(fn, f(8, 6), mesh=MESHES["8"]))
    with pytest.raises(LoweringError) as error:
        lower(plan, fn, f(8, 6)).lower(platforms=("cpu",))
    assert why in str(error.value)
    assert "say in its rule what must stay whole" in str(error.value)


def test_a_plan_keeps_the_rules_that_its_program_was_traced_with() -> None:
    """Also through its file, and also where the step would have another rule without them."""
    rules = {"product": [UserRule("i j, k l -> i l", replicate=("j", "k"))]}

    def step(x: Any, w: Any) -> Any:
        return jnp.sin(product(x, w))

    args = f(8, 16), f(16, 8)
    program = autoshard.trace(step, *args, user_rules=rules)
    assert program.fingerprint != autoshard.trace(step, *args).fingerprint
    plan = search(program, toy_machine(8), mesh={"x": 8})
    read = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    lowered = lower(read, step, *args)
    assert [op.rule for op in lowered.program.ops] == [op.rule for op in program.ops]
    x, w = concrete_like(args)
    np.testing.assert_allclose(lowered.jit()(x, w), np.sin(x @ w), rtol=1e-5, atol=1e-5)
