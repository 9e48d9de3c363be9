"""The comparison finds what differs, names it, and lets reordered sums pass."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from autoshard.lower.numbers.numeric import (
    OutputsDifferError,
    compare_outputs,
    cpu_mesh,
    differences_message,
    require_same_outputs,
    run_on_cpu_devices,
)


def test_equal_results_agree():
    tree = {
        "w": jnp.arange(6.0),
        "empty": jnp.zeros((0, 3)),
        "odd": jnp.array([jnp.nan, jnp.inf, -jnp.inf]),
        "half": jnp.ones(3, jnp.bfloat16),
        "key": jax.random.key(3),
        "flag": True,
        "nothing": None,
    }
    assert compare_outputs(tree, tree) == []
    require_same_outputs(tree, tree)
    assert differences_message([]) == "the results agree"


def test_every_offender_is_named_at_once():
    expected = {
        "a": np.float32([1, 2]),
        "b": [np.int32([1, 2]), np.float32(3)],
        "c": np.float32([1]),
        "d": np.float32([1]),
        "f": np.array([True, False]),
    }
    actual = {
        "a": np.float32([1, 2.5]),
        "b": [np.int32([1, 4]), np.float32(3)],
        "c": np.float32([[1]]),
        "d": np.float16([1]),
        "e": np.float32(0),
        "f": np.array([True, True]),
    }
    with pytest.raises(OutputsDifferError) as raised:
        require_same_outputs(expected, actual)
    assert str(raised.value).splitlines() == [
        "6 leaves differ between the expected and the actual result:",
        "  * ['e']: not expected",
        "  * ['a']: float32[2]: 1 of 2 elements differ; worst [1] 2.5, expected 2.0 "
        "(error 0.5, allowed 7.16e-05)",
        "  * ['b'][0]: int32[2]: 1 of 2 elements differ; worst [1] 4, expected 2",
        "  * ['c']: shape (1, 1), expected (1,)",
        "  * ['d']: dtype float16, expected float32",
        "  * ['f']: bool[2]: 1 of 2 elements differ; worst [1] True, expected False",
    ]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3.0])
def test_a_scalar_that_differs_is_found(wrong):
    (difference,) = compare_outputs(np.float32(1), np.float32(wrong))
    assert str(difference).startswith("result: float32[]: 1 of 1 elements differ; worst value")


def test_an_absent_leaf_is_found():
    (difference,) = compare_outputs({"a": 1, "b": 2}, {"a": 1})
    assert str(difference) == "['b']: expected but absent"


def test_large_unsigned_integers_and_complex_numbers_are_compared():
    assert compare_outputs(np.uint8([1]), np.uint8([255]))[0].worst == 254
    assert compare_outputs(np.complex64([1 + 1j]), np.complex64([1 - 1j]))[0].worst == 2


def test_tolerances_are_per_dtype_and_may_be_given():
    expected, actual = np.float32([1.0, -1.0]), np.float32([1.001, -1.0])
    assert compare_outputs(expected, actual)
    assert not compare_outputs(expected, actual, tolerances={"float32": 1e-3})
    half = jnp.float32(expected).astype(jnp.bfloat16)
    assert not compare_outputs(half, half * jnp.bfloat16(1.01))
    assert compare_outputs(half, half * jnp.bfloat16(1.2))


def test_a_sharded_function_is_compared_to_the_plain_one():
    mesh = cpu_mesh((2, 4), ("x", "y"))

    def on(*spec):
        return NamedSharding(mesh, PartitionSpec(*spec))

    def plain(v, w):
        return {"out": jnp.tanh(v @ w), "loss": jnp.sum(v @ w)}

    def sharded(v, w, factor=1.0):
        product = jax.lax.with_sharding_constraint(v, on("x", "y")) @ w
        product = jax.lax.with_sharding_constraint(product, on("x", None))
        return {"out": jnp.tanh(product * factor), "loss": jnp.sum(product)}

    v, w = jax.random.normal(jax.random.key(0), (2, 16, 32))[:, :, :16]
    shardings = (on("x", "y"), on("y", None))
    assert run_on_cpu_devices(sharded, plain, v, w, in_shardings=shardings) == []
    assert run_on_cpu_devices(jax.jit(sharded), plain, v, w) == []

    def wrong(v, w):
        return sharded(v, w, 1.01)

    (difference,) = run_on_cpu_devices(wrong, plain, v, w, in_shardings=shardings)
    assert difference.path == "['out']"
    assert difference.worst > difference.allowed


def test_a_mesh_that_is_too_large_says_what_to_do():
    with pytest.raises(RuntimeError) as raised:
        cpu_mesh((4, 1024), ("x", "y"))
    assert str(raised.value) == (
        "a mesh of (x=4, y=1024) needs 4096 CPU devices and there are 8; start Python with "
        "XLA_FLAGS=--xla_force_host_platform_device_count=4096"
    )
