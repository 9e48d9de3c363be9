"""A program with sizes, for sweeps."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp


def step(batch: int = 64, width: int = 64, hidden: int = 256) -> Any:
    """A gradient step of an embedding and two products."""

    def train(weights: Any, tokens: Any) -> Any:
        def loss(weights: Any) -> Any:
            x = weights["embedding"][tokens]
            return jnp.mean((jax.nn.gelu(x @ weights["up"]) @ weights["down"]) ** 2)

        return jax.tree.map(lambda a, b: a - b, weights, jax.grad(loss)(weights))

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    weights = {
        "embedding": array(512, width),
        "up": array(width, hidden),
        "down": array(hidden, width),
    }
    tokens = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return train, (weights, tokens), {"donate_argnums": (0,)}


def nameless(batch: int = 64) -> Any:
    """A step without tokens."""
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((batch, 64), (64, 64))]
    return (lambda x, w: jnp.tanh(x @ w)), tuple(arrays)


def held(batch: int = 64) -> Any:
    """`step`, once a file `go` is in the folder of `HELD`; who waits is there by its process id.

    A file `once` lets a single call go on.
    """
    folder = Path(os.environ["HELD"])
    (folder / str(os.getpid())).touch()
    while not (folder / "go").exists():
        with contextlib.suppress(FileNotFoundError):
            (folder / "once").unlink()
            break
        time.sleep(0.05)
    return step(batch)
