"""Keys for abstract ones."""

from __future__ import annotations

import jax
import pytest

from autoshard.lower.numbers.keys import keys_like


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_they_are_of_its_shape_and_generator(generator, shape):
    abstract = jax.eval_shape(lambda: jax.random.split(jax.random.key(0, impl=generator), shape))
    keys = keys_like(abstract, 1)
    assert (keys.shape, keys.dtype) == (abstract.shape, abstract.dtype)
    assert jax.random.key_impl(keys) == generator
