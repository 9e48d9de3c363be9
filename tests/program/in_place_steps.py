"""Steps that change their arguments in place, each with a step that returns what it changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(16, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.down = nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.down(jax.nn.relu(self.norm(self.up(x))))


BATCH = {
    "x": jax.ShapeDtypeStruct((8, 16), "float32"),
    "y": jax.ShapeDtypeStruct((8, 16), "float32"),
}


def model_and_optimizer() -> tuple[Any, Any]:
    model = Block(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)


def plain_step(model: Any, optimizer: Any, batch: Any) -> Any:
    def loss_fn(model: Any) -> Any:
        return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


train_step = nnx.jit(plain_step)


def returning_step(model: Any, optimizer: Any, batch: Any) -> Any:
    loss = plain_step(model, optimizer, batch)
    return loss, model, optimizer


@nnx.jit
def eval_step(model: Any, batch: Any) -> Any:
    model.eval()
    return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)


def ref_step(state: Any, weights: Any, x: Any) -> Any:
    """Refs in a dictionary and alone, changed outside and inside of a loop."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(weights[...])
    weights[...] -= 0.1 * gradient

    def body(k: Any, row: Any) -> Any:
        state["sums"][...] += row
        return k + 1, None

    state["count"][...] += jax.lax.scan(body, 0, x)[0]
    return loss


def refs() -> tuple[Any, Any]:
    state = {"count": jax.new_ref(jnp.zeros((), "int32")), "sums": jax.new_ref(jnp.zeros(16))}
    return state, jax.new_ref(jnp.ones((16, 16)))


@jax.tree_util.register_dataclass
@dataclass
class Average:
    """An object of a user's own: what it is told is divided by how often it was told it."""

    total: Any
    parts: tuple[Any, ...]

    def add(self, array: Any) -> None:
        self.total = self.total + array
        self.parts = (self.parts[0] + 1, *self.parts[1:])


def average_step(average: Average, x: Any) -> Any:
    average.add(x * 2)
    return jnp.sum(x)
