"""A Flax NNX training loop, planned at its first call; run it on as many devices as you like."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import autoshard

rngs = nnx.Rngs(0)
model = nnx.Sequential(nnx.Linear(64, 256, rngs=rngs), nnx.gelu, nnx.Linear(256, 64, rngs=rngs))
optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)


@autoshard.jit(machine="v5e-8")  # leave `machine` out on real GPUs and TPUs
def train_step(model, optimizer, x):
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - x) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


for number in range(5):
    print(train_step(model, optimizer, jax.random.normal(jax.random.key(number), (32, 64))))
