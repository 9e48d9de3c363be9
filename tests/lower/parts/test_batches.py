"""Linear algebra, Fourier transforms and complex sums: a batch is cut, and nothing moves for it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.lower import lower
from autoshard.lower.verify import numeric_differences, verify_collectives, verify_written
from autoshard.program.trace import trace
from autoshard.search import search
from tests.helpers import case, random_plan, toy_machine

F32 = jnp.float32
S = jax.ShapeDtypeStruct
MATRIX, VECTOR, GRID = S((16, 6, 6), F32), S((16, 6), F32), S((16, 8, 12), F32)


def solve(a, b):
    return jnp.linalg.solve(a, b[..., None])[..., 0]


def inverse(a, b):
    return jnp.linalg.inv(a)


def gradient_of_a_solve(a, b):
    return jax.vmap(jax.grad(lambda m, v: jnp.sum(jnp.linalg.solve(m, v) ** 2)))(a, b)


def conjugate_gradients(a, b):
    def one(m, v):
        return jax.scipy.sparse.linalg.cg(m @ m.T + 6 * jnp.eye(6), v, maxiter=3)[0]

    return jax.vmap(one)(a, b)


def transform(a, b):
    return jnp.abs(jnp.fft.fft(a))


def transform_of_two(a, b):
    return jnp.fft.irfft2(jnp.fft.rfft2(a) * 2.0)


def gradient_of_a_transform(a, b):
    return jax.grad(lambda a: jnp.sum(jnp.abs(jnp.fft.rfft(a)) ** 2))(a)


def complex_sum(a, b):
    return jnp.sum(a + 1j * a, axis=2)


def complex_mean_of_the_batch(a, b):
    z = a + 1j * jnp.sin(a)
    return z - jnp.mean(z, axis=0)


def complex_product(a, b):
    return jnp.prod(1.0 + 0.1j * a, axis=1)


MATRICES = [solve, inverse, gradient_of_a_solve]
GRIDS = [
    transform,
    transform_of_two,
    gradient_of_a_transform,
    complex_sum,
    complex_mean_of_the_batch,
    complex_product,
]


def shapes(fn):
    return (GRID if fn in GRIDS else MATRIX, VECTOR)


@functools.cache
def of_a_cut_batch(fn):
    program = trace(fn, *shapes(fn), trip_counts=3)
    pins = ["pin a [x, ...]", "pin b [x, ...]"]
    return search(
        program, toy_machine(), mesh={"x": 8}, requirements=pins, baselines=False, time_limit=10
    )


def arrays(fn):
    dice = np.random.default_rng(0)
    first, second = (dice.normal(size=one.shape) for one in shapes(fn))
    if fn not in GRIDS:
        first = first + 4 * np.eye(6)
    return jnp.asarray(first, F32), jnp.asarray(second, F32)


@pytest.mark.parametrize("fn", [*MATRICES, *GRIDS, conjugate_gradients])
def test_a_cut_batch_stays_cut(fn):
    plan = of_a_cut_batch(fn)
    kinds = {move.kind for move in plan.moves} - {"all_slice"}
    sums = {complex_mean_of_the_batch, conjugate_gradients}  # over the batch; whether any goes on
    assert kinds <= ({"all_reduce", "all_to_all"} if fn in sums else set())
    for explicit in (False, True):
        lowered = lower(plan, fn, *shapes(fn), explicit=explicit)
        found = verify_written(lowered) if explicit else verify_collectives(lowered)
        assert found.agrees, str(found)


@pytest.mark.parametrize("fn", [solve, gradient_of_a_solve, transform_of_two, complex_sum])
def test_the_compiler_gathers_none_of_it(fn):
    lowered = lower(of_a_cut_batch(fn), fn, *shapes(fn))
    text = lowered.jit().lower(*lowered.in_shapes).compile().as_text()
    assert not [kind for kind in ("all-gather", "all-to-all", "all-reduce") if kind in text]


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(
    "fn", [solve, transform, transform_of_two, complex_mean_of_the_batch, complex_product]
)
def test_parts_of_a_batch_compute_what_the_whole_does(fn, explicit):
    lowered = lower(of_a_cut_batch(fn), fn, *shapes(fn), explicit=explicit)
    assert numeric_differences(lowered, fn, arrays(fn)) == []


@pytest.mark.parametrize("fn", [inverse, transform_of_two, complex_sum])
def test_any_plan_is_what_shardy_makes(fn):
    given = case(fn, *shapes(fn), mesh={"x": 2, "y": 4})
    for seed in range(3):
        found = verify_collectives(lower(random_plan(given, seed), fn, *shapes(fn)))
        assert found.agrees, str(found)
