"""A Keras 3 model on JAX, by its stateless functions."""

import os

os.environ["KERAS_BACKEND"] = "jax"
import jax
import jax.numpy as jnp
import keras

import autoshard

keras.utils.set_random_seed(0)
layers = [keras.layers.Dense(256, activation="gelu"), keras.layers.Dense(64)]
model = keras.Sequential([keras.Input((64,)), *layers])
optimizer = keras.optimizers.AdamW(1e-2)
optimizer.build(model.trainable_variables)
arrays = lambda variables: [variable.value for variable in variables]  # noqa: E731
weights, state = arrays(model.trainable_variables), arrays(optimizer.variables)


@autoshard.jit(machine="v5e-8", donate_argnums=(0, 1))
def train_step(weights, state, x):
    loss = lambda weights: jnp.mean((model.stateless_call(weights, [], x)[0] - x) ** 2)  # noqa: E731
    value, gradients = jax.value_and_grad(loss)(weights)
    return value, *optimizer.stateless_apply(state, gradients, weights)


for number in range(5):
    x = jax.random.normal(jax.random.key(number), (32, 64))
    loss, weights, state = train_step(weights, state, x)
    print(loss)
