"""A Flax Linen `TrainState`: planned, lowered, laid out and run."""

import jax
import jax.numpy as jnp
import optax
from flax import linen
from flax.training.train_state import TrainState

import autoshard

model = linen.Sequential([linen.Dense(256), linen.gelu, linen.Dense(64)])
x = jax.random.normal(jax.random.key(0), (32, 64))
params = model.init(jax.random.key(1), x)["params"]
state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-2))


def train_step(state, x):
    loss = lambda params: jnp.mean((state.apply_fn({"params": params}, x) - x) ** 2)  # noqa: E731
    value, gradients = jax.value_and_grad(loss)(state.params)
    return value, state.apply_gradients(grads=gradients)


plan = autoshard.search(autoshard.trace(train_step, state, x, donate_argnums=0), "v5e-8")
lowered = autoshard.lower(plan, train_step, state, x)
step, (state, x) = lowered.jit(), lowered.shard(state, x)
for _ in range(5):
    loss, state = step(state, x)
    print(loss)
