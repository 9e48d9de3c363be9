"""A residual multilayer perceptron trained by regression: the smallest program worth sharding.

Each layer is `x + gelu(x W_up + b_up) W_down + b_down` with `W_up: [width, hidden]`; the loss is
the mean squared error against targets of shape `[batch, width]`. All sizes are free, so the same
program is batch-bound (data parallelism wins) or weight-bound (tensor parallelism wins).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from autoshard.models import training
from autoshard.models.training import Step, abstract, project


def mlp(
    batch: int = 4096,
    width: int = 8192,
    hidden: int = 32768,
    layers: int = 4,
    *,
    scan: bool = False,
    checkpoint: bool = False,
    compute_dtype: Any = jnp.bfloat16,
) -> Step:
    """The train step of `layers` residual layers `width -> hidden -> width`."""
    layer = {
        "up": abstract(width, hidden),
        "up_bias": abstract(hidden),
        "down": abstract(hidden, width),
        "down_bias": abstract(width),
    }
    params = {"layers": training.stacked(layer, layers, scan=scan)}
    data = {"inputs": abstract(batch, width), "targets": abstract(batch, width)}

    def loss(params: Any, batch: Any) -> jax.Array:
        x = batch["inputs"].astype(compute_dtype)
        x, _ = training.repeat(_layer, x, params["layers"], checkpoint=checkpoint)
        with jax.named_scope("loss"):
            return jnp.mean(jnp.square(x.astype(jnp.float32) - batch["targets"]))

    return training.adamw_step(loss, params, data)


def _layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
    hidden = project("bd,df->bf", x, weights["up"]) + weights["up_bias"].astype(x.dtype)
    out = project("bf,fd->bd", jax.nn.gelu(hidden), weights["down"])
    return x + out + weights["down_bias"].astype(x.dtype), None


def build(name: str, **sizes: Any) -> Step:
    """The built-in `name`, at its real size where `sizes` say nothing else."""
    return mlp(**sizes)


def tiny(name: str, **sizes: Any) -> Step:
    """The built-in `name`, small where `sizes` say nothing else."""
    return mlp(**{"batch": 16, "width": 32, "hidden": 64, "layers": 2, **sizes})


def sample(args: Any, seed: int) -> Any:
    """Random arguments."""
    return training.sample(args, seed, {"inputs": 1, "targets": 1})
