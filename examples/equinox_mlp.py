"""An Equinox model: functions and settings in it stay as they are, arrays are planned."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import autoshard

model = eqx.nn.MLP(64, 64, width_size=256, depth=2, activation=jax.nn.gelu, key=jax.random.key(0))
optimizer = optax.adamw(1e-2)
state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))


@autoshard.jit(machine="v5e-8", donate_argnums=(0, 1))
def train_step(model, state, x):
    loss = lambda model: jnp.mean((jax.vmap(model)(x) - x) ** 2)  # noqa: E731
    value, gradients = eqx.filter_value_and_grad(loss)(model)
    updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_inexact_array))
    return value, eqx.apply_updates(model, updates), state


for number in range(5):
    x = jax.random.normal(jax.random.key(number), (32, 64))
    loss, model, state = train_step(model, state, x)
    print(loss)
