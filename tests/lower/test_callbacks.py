"""Ops without results and calls of Python: planned, in order, as often as they are written."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from autoshard.lower import lower
from autoshard.lower.parts.cut import LoweringError
from autoshard.lower.verify import numeric_differences, verify_collectives, verify_written
from autoshard.program.trace import TraceError, trace
from autoshard.search import search
from tests.helpers import best_plan, case, random_plan

W, X = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((32, 32), (64, 32)))
SEEN: list[np.ndarray] = []


def keep(value):
    SEEN.append(np.asarray(value))


def prints_a_scalar(w, x):
    y = x @ w
    jax.debug.print("{m}", m=y.mean())
    return y


def shows_an_array(w, x):
    y = jnp.tanh(x @ w)
    jax.debug.callback(keep, y)
    return y


def shows_in_a_loop(w, x):
    def turn(c, _):
        c = jnp.tanh(c @ w)
        jax.debug.callback(keep, c.mean(0))
        return c, None

    return jax.lax.scan(turn, x, None, length=3)[0]


def keeps_in_order(w, x):
    """What is kept first is kept first, before a loop and in every turn of it."""
    io_callback(keep, None, jnp.sum(x), ordered=True)

    def turn(c, k):
        io_callback(keep, None, k, ordered=True)
        return jnp.tanh(c @ w), None

    y = jax.lax.scan(turn, x, jnp.arange(3.0))[0]
    io_callback(keep, None, -jnp.ones(()), ordered=True)
    return y


def shows_a_gradient(w, x):
    def loss(w):
        y = x @ w
        jax.debug.callback(keep, jnp.sum(y, 0))
        return jnp.sum(y * y)

    return w - 0.1 * jax.grad(loss)(w)


def asks_for_a_result(w, x):
    y = x @ w
    return y * jax.pure_callback(np.cos, jax.ShapeDtypeStruct((32,), jnp.float32), y.sum(0))


PROGRAMS = [
    prints_a_scalar,
    shows_an_array,
    shows_in_a_loop,
    keeps_in_order,
    shows_a_gradient,
    asks_for_a_result,
]


@functools.cache
def planned(fn, seed):
    given = case(fn, W, X, mesh={"x": 8})
    return best_plan(given) if seed is None else random_plan(given, seed)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_shardy_makes_the_planned_collectives_without_devices(fn, seed):
    lowered = lower(planned(fn, seed), fn, W, X)
    found = verify_collectives(lowered)
    assert found.agrees, str(found)


@pytest.mark.parametrize("machine", ["v5e-8", "h100-8"])
def test_ops_without_results_are_planned_for_compilers_with_habits(machine):
    for fn in (prints_a_scalar, shows_in_a_loop, keeps_in_order):
        plan = search(trace(fn, W, X), machine, mesh={"x": 8}, baselines=False)
        assert plan.estimate.step_seconds > 0


def test_a_sum_of_a_product_that_python_is_called_with_is_judged():
    """XLA:CPU refuses a fusion of its own there, sharded or not."""

    def step(w, x):
        y = x @ w
        jax.debug.callback(keep, y.sum())
        return y

    args = jnp.ones((128, 256)), jnp.ones((64, 128))
    plan = best_plan(case(step, *args, mesh={"x": 8}))
    assert numeric_differences(lower(plan, step, *args), step, args) == []


def given_arrays():
    dice = np.random.default_rng(0)
    return jnp.asarray(dice.normal(size=W.shape) * 0.1), jnp.asarray(dice.normal(size=X.shape))


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("fn", [shows_an_array, shows_in_a_loop, shows_a_gradient])
def test_python_sees_whole_arrays_once(fn, explicit):
    arrays = [one.astype(jnp.float32) for one in given_arrays()]
    lowered = lower(planned(fn, None), fn, W, X, explicit=explicit)
    runs = []
    for step in (jax.jit(fn), lowered.jit()):
        SEEN.clear()
        jax.block_until_ready(step(*arrays))
        jax.effects_barrier()
        runs.append(sorted(SEEN, key=lambda one: float(one.sum())))
    for plain, sharded in zip(*runs, strict=True):
        np.testing.assert_allclose(sharded, plain, rtol=1e-4, atol=1e-5)
    if explicit:
        assert verify_written(lowered).agrees


def test_ordered_effects_keep_their_order():
    arrays = [one.astype(jnp.float32) for one in given_arrays()]
    lowered = lower(planned(keeps_in_order, 1), keeps_in_order, W, X)
    SEEN.clear()
    jax.block_until_ready(lowered.jit()(*arrays))
    jax.effects_barrier()
    assert [float(one) for one in SEEN[1:]] == [0.0, 1.0, 2.0, -1.0]
    assert float(SEEN[0]) == pytest.approx(float(jnp.sum(arrays[1])), rel=1e-4)


def test_numbers_are_those_of_the_unsharded_step():
    fn = asks_for_a_result
    arrays = [one.astype(jnp.float32) for one in given_arrays()]
    assert numeric_differences(lower(planned(fn, 1), fn, W, X), fn, arrays) == []


# -- refused ---------------------------------------------------------------------------------------


def test_what_would_run_on_every_device_is_refused():
    lowered = lower(planned(keeps_in_order, None), keeps_in_order, W, X, explicit=True)
    with pytest.raises(LoweringError, match=r"io_callback at .* would run on every device: lower"):
        verify_written(lowered)


def test_python_is_lowered_for_devices_that_are_there_alone():
    lowered = lower(planned(shows_an_array, None), shows_an_array, W, X)
    with pytest.raises(LoweringError) as caught:
        lowered.mlir_text(platform="tpu")
    first, call, repair = str(caught.value).splitlines()
    assert first == (
        "the step calls Python, which JAX lowers for a device that is there, and tpu is not (JAX "
        "sees cpu):"
    )
    assert call.startswith("  debug_callback at (top) (test_callbacks.py:")
    assert repair.startswith("take these calls out of the step where it is compiled without dev")


def test_prints_that_jax_orders_on_one_device_alone_are_refused():
    def ordered(w, x):
        jax.debug.print("{m}", m=x.sum(), ordered=True)
        return x @ w

    with pytest.raises(TraceError) as caught:
        trace(ordered, W, X)
    assert str(caught.value).splitlines()[2] == (
        "drop ordered=True, or print with jax.experimental.io_callback(..., ordered=True)"
    )
    assert "(test_callbacks.py:" in str(caught.value)


def test_a_call_for_each_part_ties_nothing():
    def partitioned(w, x):
        y = jnp.tanh(x @ w)
        jax.debug.callback(keep, y, partitioned=True)
        return y

    plan = best_plan(case(partitioned, W, X, mesh={"x": 8}))
    assert not plan.moves
