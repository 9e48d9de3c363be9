"""What JAX opens at lowering alone is planned as what it is made of."""

import jax
import jax.numpy as jnp
import pytest

from autoshard import compat
from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify_collectives
from autoshard.program.trace import trace
from autoshard.search.search import search
from tests.helpers import toy_machine

ROWS = jax.random.normal(jax.random.key(0), (64, 32))


def looked_up(rows):
    return jax.vmap(jnp.searchsorted)(jnp.sort(rows), rows)


def found(rows):
    return jax.vmap(lambda row: jnp.nonzero(row > 0, size=8, fill_value=0)[0])(rows)


def in_a_loop(rows):
    def body(carry, _):
        mantissa, exponent = jnp.frexp(carry)
        return jnp.ldexp(jnp.round(8 * mantissa) / 8, exponent), mantissa.sum(1)

    return jax.lax.scan(jax.checkpoint(body), rows, length=3)


def in_a_rule(rows):
    @jax.custom_vjp
    def rounded(rows):
        mantissa, exponent = jnp.frexp(rows)
        return jnp.ldexp(jnp.round(8 * mantissa) / 8, exponent)

    rounded.defvjp(lambda rows: (rounded(rows), None), lambda _, cotangent: (cotangent,))
    return jax.grad(lambda rows: jnp.sum(rounded(jnp.sin(rows)) ** 2))(rows)


@pytest.mark.parametrize("fn", [looked_up, found, in_a_loop, in_a_rule])
def test_rows_are_cut_without_collectives_of_them(fn):
    program = trace(fn, ROWS)
    plan = search(program, toy_machine(), mesh={"x": 8}, baselines=False)
    assert plan.moves == ()
    lowered = lower(plan, fn, ROWS)
    assert jax.tree.leaves(lowered.in_shardings)[0].spec[0] == "x"
    assert verify_collectives(lowered).agrees
    assert numeric_differences(lowered, fn, [ROWS]) == []


def test_a_program_of_lax_alone_stays_the_object_that_it_is():
    closed = jax.make_jaxpr(lambda rows: jnp.sin(rows) @ rows.T)(ROWS)
    assert compat.in_lax(closed) is closed
