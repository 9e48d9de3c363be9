"""What rounding can make is no difference; what it cannot, is one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.lower.numbers.numeric import compare_outputs
from autoshard.lower.numbers.rounding import deviations
from autoshard.lower.numbers.unsharded import DOUBLE_FLOOR, DOUBLE_TOLERANCE, reference


def sign_of_nothing(x):
    """Adam's first step of a bias before a norm: rounding divided by rounding."""
    gradient = (x - x.mean(0)).sum(0)
    return gradient / jnp.sqrt(gradient**2 + 1e-60), x.sum(0)


def nearest_of_two(x):
    """Which of two equal sums is larger, rounding decides."""
    return jnp.argmax(jnp.stack([x.sum(), x[::-1].sum() * (1 + 1e-16)])), x.sum()


def normed_difference(x):
    one, other = x.sum(), x.T.reshape(-1).sum()
    return (one - other) / jnp.abs(one - other + 1e-300), one


@pytest.mark.parametrize("step", [sign_of_nothing, nearest_of_two, normed_difference])
def test_only_the_results_of_rounding_may_differ(step):
    x = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    known = reference(step, (jnp.asarray(x),))
    rounding = known.rounding()
    assert rounding is not None

    def found(actual):
        return [
            one.path
            for one in compare_outputs(
                known.outputs,
                actual,
                tolerances={"float64": DOUBLE_TOLERANCE},
                floor=DOUBLE_FLOOR,
                rounding=rounding,
            )
        ]

    with jax.enable_x64(True):
        other = np.asarray(known.outputs[0])
        flipped = 1 - other if other.dtype.kind == "i" else -other
        assert found((jnp.asarray(flipped), known.outputs[1])) == []
        wrong = known.outputs[1] * (1 + 1e-6)
        assert found((known.outputs[0], wrong)) == ["[1]"]


def test_what_only_moves_numbers_does_not_change():
    def moved(x):
        return jnp.sort(x.T.reshape(-1)), x.max(), jnp.where(x == x.max(), 1, 0)

    known = reference(moved, (jnp.arange(12.0).reshape(3, 4) ** 2,))
    rounding = known.rounding()
    assert rounding is not None
    assert rounding["[0]"].max() < 1e-10
    assert rounding["[2]"].max() == 0


def test_deviations_are_of_the_size_of_the_changes():
    def run(nudge):
        return {"a": nudge.nudged(jnp.ones(4)), "n": jnp.arange(3)}

    with jax.enable_x64(True):
        found = deviations({"a": jnp.ones(4), "n": jnp.arange(3)}, run)
    assert 0 < found["['a']"].max() < 12 * 2.0**-46
    assert found["['n']"].max() == 0
