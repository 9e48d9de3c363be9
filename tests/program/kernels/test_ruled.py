"""Functions that carry a rule: what follows for their gradients, under `vmap`, and what is said."""

from __future__ import annotations

import doctest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard import compat
from autoshard.program.kernels import ruled
from autoshard.program.rules.user import NoRuleError, UserRule
from autoshard.program.trace import TraceError
from tests.program.kernels.functions import f
from tests.program.kernels.ruled_functions import attend, causal, normed, plain_attention, product

Q, KV = f(2, 4, 16, 8), f(2, 4, 16, 8)


def ruled_ops(fn: Any, *args: Any, **options: Any) -> list[Any]:
    program = autoshard.trace(fn, *args, **options)
    return [op for op in program.ops if op.primitive == compat.RULED]


def rules_of(fn: Any, *args: Any, **options: Any) -> list[str]:
    return [str(op.rule) for op in ruled_ops(fn, *args, **options)]


def total(fn: Any) -> Any:
    return lambda *operands: jnp.sum(fn(*operands) ** 2)


def test_the_examples_of_the_module_hold() -> None:
    assert doctest.testmod(ruled).failed == 0


def test_a_call_is_one_op_and_its_gradient_another() -> None:
    forward, backward = rules_of(jax.grad(total(attend), (0, 1, 2)), Q, KV, KV)
    assert forward == (
        "([b, h, q, d], [b, h, k, d], [b, h, k, d])->([b, h, q, d]) "
        "{b=2, h=4, q=16, d=8, k=16} need_replication={q, d, k}"
    )
    assert backward == (
        "([i, j, k, l], [i, j, m, l], [i, j, m, l], [i, j, k, l])->"
        "([i, j, k, l], [i, j, m, l], [i, j, m, l]) "
        "{i=2, j=4, k=16, l=8, m=16} need_replication={k, l, m}"
    )


def test_gradients_of_what_all_rows_share_are_sums_in_an_op_of_their_own() -> None:
    """The integer has none; `...` stands for two dimensions."""
    _, rows, weights = rules_of(
        jax.grad(total(normed), (0, 1)), f(4, 6, 8), f(8), jnp.zeros((), jnp.int32)
    )
    assert rows.startswith("([i, j, k], [k], [], [i, j, k])->([i, j, k]) {i=4, j=6, k=8}")
    assert weights == (
        "([j, k, i], [i], [], [j, k, i])->([i]) {i=8, j=4, k=6} reduction={j, k} "
        "need_replication={i}"
    )


def test_what_is_summed_has_one_cotangent_for_all_terms() -> None:
    _, left, right = rules_of(jax.grad(total(product), (0, 1)), f(8, 6), f(6, 4))
    assert left == "([i, j], [j, k], [i, k])->([i, j]) {i=8, j=6, k=4} reduction={k}"
    assert right == "([k, i], [i, j], [k, j])->([i, j]) {i=6, j=4, k=8} reduction={k}"


def test_vmap_gives_one_factor_more_to_what_it_walks_along() -> None:
    fn = jax.vmap(product, in_axes=(1, None))
    assert rules_of(fn, f(8, 3, 6), f(6, 4)) == [
        "([batch, i, k], [k, j])->([batch, i, j]) {batch=3, i=8, j=4, k=6} reduction={k}"
    ]
    twice = rules_of(jax.vmap(fn), f(2, 8, 3, 6), f(2, 6, 4))
    assert twice == [
        "([batch1, batch, i, k], [batch1, k, j])->([batch1, batch, i, j]) "
        "{batch1=2, batch=3, i=8, j=4, k=6} reduction={k}"
    ]


@pytest.mark.parametrize("transform", ["plain", "jit", "vmap", "scan", "remat", "twice"])
def test_outside_of_plans_it_is_the_function_itself(transform: str) -> None:
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.standard_normal(s), jnp.float32) for s in ((3, 4, 4), (4, 4)))

    def of(product: Any) -> Any:
        def loss(x: Any, y: Any) -> Any:
            if transform == "vmap":
                return jnp.sum(jax.vmap(product, (0, None))(x, y) ** 2)
            if transform == "scan":
                return jnp.sum(jax.lax.scan(lambda c, one: (product(one, c), None), y, x)[0])
            one = jax.checkpoint(product) if transform == "remat" else product
            return jnp.sum(jnp.tanh(one(x[0], y)))

        grad = jax.grad(loss, (0, 1))
        if transform == "twice":
            grad = jax.grad(lambda x, y: jnp.sum(grad_of(x, y)))
            inner = jax.grad(loss)

            def grad_of(x: Any, y: Any) -> Any:
                return jnp.sin(inner(x, y))

        return jax.jit(grad) if transform == "jit" else grad

    found, expected = of(product)(x, y), of(lambda x, y: x @ y)(x, y)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_structures_and_static_arguments_are_the_functions_own() -> None:
    @autoshard.kernel("i j, j -> i, i j")
    def split(operands: dict[str, Any], *, twice: bool) -> tuple[Any, Any]:
        made = operands["x"] * operands["y"] * (2 if twice else 1)
        return made.sum(-1), made

    first, second = split({"x": jnp.ones((2, 3)), "y": jnp.arange(3.0)}, twice=True)
    np.testing.assert_array_equal(first, [6, 6])
    assert second.shape == (2, 3)
    assert split.__name__ == "split"


def test_work_is_what_is_said_or_what_it_holds() -> None:
    (counted,) = ruled_ops(attend, Q, KV, KV)
    (kernel,) = (op for op in autoshard.trace(causal, Q, KV, KV).ops if op.kernel is not None)
    assert counted.kernel.arithmetic == kernel.kernel.arithmetic
    assert counted.kernel.bytes == 4 * 4 * 2 * 4 * 16 * 8
    count = jnp.zeros((), jnp.int32)
    forward, *backward = ruled_ops(jax.grad(total(normed), (0, 1)), f(4, 6, 8), f(8), count)
    assert forward.kernel.flops == 7 * 4 * 6 * 8
    assert [one.kernel.flops for one in backward] == [2 * forward.kernel.flops] * 2
    (many,) = ruled_ops(jax.vmap(normed, (0, None, None)), f(5, 4, 6, 8), f(8), count)
    assert many.kernel.flops == 5 * forward.kernel.flops


def test_a_loop_counts_as_often_as_it_runs_and_a_branch_once() -> None:
    @autoshard.kernel("i j, j k -> i k", replicate=("j", "k"))
    def turned(x: Any, w: Any) -> Any:
        y = jax.lax.fori_loop(0, 3, lambda _, y: y @ w, x)
        return jax.lax.cond(y[0, 0] > 0, lambda: y @ w, lambda: y)

    (op,) = ruled_ops(turned, f(4, 6), f(6, 6))
    assert op.kernel.arithmetic.products == 4 * 2 * 4 * 6 * 6


def test_a_rule_in_user_rules_goes_before_that_of_the_function() -> None:
    given = {"product": UserRule("r k, k c -> r c", replicate=("k",))}
    assert rules_of(product, f(8, 6), f(6, 4), user_rules=given) == [
        "([r, k], [k, c])->([r, c]) {r=8, c=4, k=6} need_replication={k}"
    ]


def test_a_rule_that_does_not_fit_is_said_with_the_function() -> None:
    with pytest.raises(TraceError) as error:
        autoshard.trace(product, f(8, 6), f(2, 6, 4))
    said = str(error.value)
    assert "the user rule 'i k, k j -> i j' does not fit the function 'product':" in said
    assert "operand 1 of shape (2, 6, 4) has 2 dimensions in the rule" in said


def test_a_rule_that_cannot_be_read_is_refused_at_once() -> None:
    with pytest.raises(NoRuleError, match="cannot be read"):
        autoshard.kernel("i - j")
    with pytest.raises(TypeError, match="a UserRule says itself"):
        autoshard.kernel(UserRule("i -> i"), replicate=("i",))


def test_a_kernel_inside_of_it_runs_in_interpret_mode() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal(one.shape), one.dtype) for one in (Q, KV, KV))
    interpreted = compat.with_kernels(jax.make_jaxpr(attend)(q, k, v), compat.interpreted)
    (found,) = jax.jit(jax.extend.core.jaxpr_as_fun(interpreted))(q, k, v)
    np.testing.assert_allclose(found, plain_attention(q, k, v), atol=1e-5)
