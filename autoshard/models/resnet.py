"""ResNet-50: a convolutional image classifier with batch normalisation, trained by momentum SGD.

Sizes from https://arxiv.org/abs/1512.03385, table 1: stages of 3, 4, 6 and 3 bottleneck blocks
with widths 64, 128, 256 and 512, each times four at its output; 25.6e6 parameters with 1000
classes. The stride of a stage is in its 3 x 3 convolution, as is practised ("version 1.5").

Images are NHWC. Batch normalisation (https://arxiv.org/abs/1502.03167) takes its mean and variance
over the whole batch, wherever its shards lie, and the step carries the running statistics:
`(state, batch) -> (state, loss)`, where state holds parameters, statistics and momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from autoshard.models import training
from autoshard.models.training import Step, abstract, project

EXPANSION = 4
STATISTICS_DECAY = 0.9


@dataclass(frozen=True, slots=True)
class ResNet:
    """The sizes of one bottleneck residual network."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    image: int = 224
    classes: int = 1000


def resnet(config: ResNet | None = None, batch: int = 1024) -> Step:
    """The momentum-SGD step on `[batch, image, image, 3]` images and integer labels."""
    config = config or ResNet()
    optimizer = optax.chain(
        optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9, nesterov=True)
    )

    def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params = state["params"]
        differentiate = jax.value_and_grad(_loss, has_aux=True)
        (loss, statistics), gradients = differentiate(params, state["statistics"], batch)
        with jax.named_scope("optimizer"):
            updates, momentum = optimizer.update(gradients, state["optimizer"], params)
            params = optax.apply_updates(params, updates)
        return {"params": params, "statistics": statistics, "optimizer": momentum}, loss

    params, statistics = weights(config)
    state = {
        "params": params,
        "statistics": statistics,
        "optimizer": jax.eval_shape(optimizer.init, params),
    }
    data = {
        "images": abstract(batch, config.image, config.image, 3),
        "labels": abstract(batch, dtype=jnp.int32),
    }
    return Step(train_step, (state, data), {"donate_argnums": (0,)})


def weights(config: ResNet) -> tuple[Any, Any]:
    """The abstract parameters and running statistics, in trees of the same paths."""
    params: dict[str, Any] = {"stem": _unit_weights(7, 3, config.width), "stages": []}
    channels = config.width
    for stage, blocks in enumerate(config.blocks):
        width = config.width * 2**stage
        params["stages"].append([])
        for index in range(blocks):
            block = {
                "reduce": _unit_weights(1, channels, width),
                "spatial": _unit_weights(3, width, width),
                "expand": _unit_weights(1, width, width * EXPANSION),
            }
            if index == 0:
                block["shortcut"] = _unit_weights(1, channels, width * EXPANSION)
            channels = width * EXPANSION
            params["stages"][-1].append(block)
    statistics = jax.tree.map(
        lambda unit: {"mean": unit["bias"], "variance": unit["bias"]}, params, is_leaf=_is_unit
    )
    params["head"] = abstract(channels, config.classes)
    params["head_bias"] = abstract(config.classes)
    return params, statistics


def _unit_weights(size: int, inputs: int, outputs: int) -> dict[str, Any]:
    kernel = abstract(size, size, inputs, outputs)
    return {"kernel": kernel, "scale": abstract(outputs), "bias": abstract(outputs)}


def _is_unit(node: Any) -> bool:
    return isinstance(node, dict) and "kernel" in node


def _unit(x: jax.Array, weights: Any, running: Any, stride: int = 1) -> tuple[jax.Array, Any]:
    """A convolution and its batch normalisation; also the new running statistics."""
    x = lax.conv_general_dilated(
        x,
        weights["kernel"].astype(x.dtype),
        window_strides=(stride, stride),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=(0, 1, 2))
    variance = jnp.mean(jnp.square(wide - mean), axis=(0, 1, 2))
    normed = (wide - mean) * lax.rsqrt(variance + 1e-5) * weights["scale"] + weights["bias"]
    measured = {"mean": mean, "variance": variance}
    updated = {
        name: STATISTICS_DECAY * running[name] + (1 - STATISTICS_DECAY) * measured[name]
        for name in measured
    }
    return normed.astype(x.dtype), updated


def _block(x: jax.Array, weights: Any, running: Any, stride: int) -> tuple[jax.Array, Any]:
    updated = {}
    shortcut = x
    if "shortcut" in weights:
        shortcut, updated["shortcut"] = _unit(x, weights["shortcut"], running["shortcut"], stride)
    x, updated["reduce"] = _unit(x, weights["reduce"], running["reduce"])
    x, updated["spatial"] = _unit(jax.nn.relu(x), weights["spatial"], running["spatial"], stride)
    x, updated["expand"] = _unit(jax.nn.relu(x), weights["expand"], running["expand"])
    return jax.nn.relu(x + shortcut), updated


def _loss(params: Any, statistics: Any, batch: Any) -> tuple[jax.Array, Any]:
    updated: dict[str, Any] = {"stages": []}
    with jax.named_scope("stem"):
        x = batch["images"].astype(jnp.bfloat16)
        x, updated["stem"] = _unit(x, params["stem"], statistics["stem"], 2)
        x = jax.nn.relu(x)
        window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
        x = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME")
    for stage, blocks in enumerate(params["stages"]):
        updated["stages"].append([])
        for index, weights in enumerate(blocks):
            stride = 2 if stage > 0 and index == 0 else 1
            with jax.named_scope(f"stage_{stage}/block_{index}"):
                running = statistics["stages"][stage][index]
                x, new = _block(x, weights, running, stride)
            updated["stages"][-1].append(new)
    with jax.named_scope("classify"):
        pooled = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
        logits = project("bd,dc->bc", pooled, params["head"]) + params["head_bias"]
    with jax.named_scope("loss"):
        return training.cross_entropy(logits, batch["labels"]), updated


def build(name: str, **sizes: Any) -> Step:
    """The built-in `name`, at its real size where `sizes` say nothing else."""
    return resnet(**sizes)


def tiny(name: str, **sizes: Any) -> Step:
    """The built-in `name`, small where `sizes` say nothing else."""
    config = ResNet(blocks=(1, 2), width=8, image=32, classes=16)
    return resnet(config, **{"batch": 16, **sizes})


def sample(args: Any, seed: int) -> Any:
    """Random arguments: labels below the number of classes."""
    classes = args[0]["params"]["head"].shape[1]
    return training.sample(args, seed, {"images": 1, "labels": classes})
