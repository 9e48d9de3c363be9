"""Keys of random numbers for abstract ones: of the generator whose keys they are."""

from __future__ import annotations

from typing import Any

import jax


def keys_like(struct: Any, seed: int) -> Any:
    """Different keys of the shape and the generator of `struct`, an array of keys or abstract.

    JAX tells the generator of arrays and tracers alone.
    """
    found: list[Any] = []
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), struct)
    return jax.random.split(jax.random.key(seed, impl=found[0]), struct.shape)
