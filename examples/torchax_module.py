"""A PyTorch module, which torchax makes a function of JAX and a pytree of its arrays."""

import jax
import jax.numpy as jnp
import optax
import torch
import torchax

import autoshard

torch.manual_seed(0)
layers = [torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)]
weights, model = torchax.extract_jax(torch.nn.Sequential(*layers))
optimizer = optax.adamw(1e-2)
state = optimizer.init(weights)


@autoshard.jit(machine="v5e-8", donate_argnums=(0, 1))
def train_step(weights, state, x):
    loss = lambda weights: jnp.mean((model(weights, (x,)) - x) ** 2)  # noqa: E731
    value, gradients = jax.value_and_grad(loss)(weights)
    updates, state = optimizer.update(gradients, state, weights)
    return value, optax.apply_updates(weights, updates), state


for number in range(5):
    x = jax.random.normal(jax.random.key(number), (32, 64))
    loss, weights, state = train_step(weights, state, x)
    print(loss)
