"""Arrays of no elements: nobody reads them, and they hold nobody's layout fast."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.lower.spmd import lower
from autoshard.lower.verify import numeric_differences, verify, verify_written
from tests.helpers import MESHES, best_plan, case, concrete_like, random_plan, sampled


def f(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def recurrence(decay, x):
    def join(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    return lax.associative_scan(join, (jax.nn.sigmoid(decay), x), axis=1)[1]


def linear_recurrence(weights, x):
    """The gradient of a scan in log-many steps; the last of them have no tail."""
    return jax.grad(lambda w: jnp.mean(recurrence(x @ w, x) ** 2))(weights)


def in_checkpointed_layers(weights, x):
    def layer(x, weight):
        return x + recurrence(x @ weight, x), None

    def loss(weights):
        return jnp.mean(lax.scan(jax.checkpoint(layer), x, weights)[0] ** 2)

    return jax.grad(loss)(weights)


def joined(x, nothing):
    """An empty input, one that is cut off here, and one that is both before and behind."""
    none = x[:, 4:4]
    return jnp.concatenate([none, x, nothing], axis=1), jnp.concatenate([nothing, none], axis=1)


def made_of_nothing(x, nothing):
    """Products and sums over no elements, and padding around none."""
    product = nothing @ jnp.zeros((0, 16), x.dtype)
    padded = lax.pad(nothing, jnp.max(x), ((0, 0, 0), (5, 11, 0)))
    largest = jnp.max(nothing, axis=1, initial=3.0)
    return x + product, x * padded, x + largest[:, None]


def written_nowhere(x, nothing):
    """Updates of no elements, and results that hold none beside one that does."""
    same = lax.dynamic_update_slice(x, nothing, (0, 3))
    same = same.at[:, nothing[0].astype(jnp.int32)].add(nothing)
    none, rest = lax.split(same, (0, 16), axis=1)
    return rest + 1, none


def carried(x, nothing):
    """Through a loop, closed over, and handed out of it."""

    def body(carry, _):
        x, none = carry
        x = jnp.concatenate([x * 2, none, nothing], axis=1)
        return (x, none + 1), none

    return lax.scan(body, (x, nothing), None, length=3)


def chosen(x, nothing):
    def wide(x):
        return jnp.concatenate([x, x[:, :0]], axis=1), nothing * 2

    return lax.cond(jnp.sum(x) > 0, wide, lambda x: (-x, nothing), x)


def keys(x):
    """Random keys may be none, too."""
    few = jax.random.split(jax.random.key(0), (0, 8))
    return x + jax.random.key_data(few).sum()


X, NOTHING = f(8, 16), f(8, 0)
PROGRAMS = {
    "linear recurrence": (linear_recurrence, (f(16, 16), f(8, 8, 16))),
    "in checkpointed layers": (in_checkpointed_layers, (f(3, 16, 16), f(8, 8, 16))),
    "joined": (joined, (X, NOTHING)),
    "made of nothing": (made_of_nothing, (X, NOTHING)),
    "written nowhere": (written_nowhere, (X, NOTHING)),
    "carried": (carried, (X, NOTHING)),
    "chosen": (chosen, (X, NOTHING)),
    "keys": (keys, (X,)),
}


NAMES = list(PROGRAMS)
CASES = sampled(
    list(itertools.product(NAMES, ("2x4", "8"))),
    lambda one: (NAMES.index(one[0]) % 2 == 0) == (one[1] == "2x4"),
)


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_the_numbers_and_the_collectives_are_right(name, mesh):
    function, args = PROGRAMS[name]
    given = case(function, *args, mesh=MESHES[mesh])
    for plan in (best_plan(given), random_plan(given, 0), random_plan(given, 1)):
        assert verify(plan, function, *args, concrete=concrete_like(args))
        written = lower(plan, function, *args, explicit=True)
        assert verify_written(written).agrees
        assert numeric_differences(written, function, concrete_like(args)) == []


@pytest.mark.parametrize("name", ["linear recurrence", "joined", "made of nothing", "carried"])
def test_every_op_can_be_cut_where_it_could_without_them(name):
    """The rows of x go through all of these programs; no op needs them whole."""
    function, args = PROGRAMS[name]
    given = case(function, *args, mesh=MESHES["8"])
    plan = best_plan(given)
    gathers = [m for m in plan.moves if m.kind in ("all_gather", "all_to_all")]
    assert gathers == []


def test_nobody_reads_them():
    function, args = PROGRAMS["linear recurrence"]
    program = case(function, *args, mesh=MESHES["8"]).program
    none = {value.index for value in program.values if 0 in value.shape}
    assert none
    assert all(program.values[index].free for index in none)
    assert none.isdisjoint(i for op in program.ops for i in op.inputs)
