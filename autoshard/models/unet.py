"""A denoising U-Net, trained to predict the noise in an image (a diffusion model).

Sizes from https://arxiv.org/abs/2006.11239, appendix B, for 256 x 256 images: 128 channels times
1, 1, 2, 2, 4, 4 over six resolutions, two residual blocks for each, attention at 16 x 16, 114e6
parameters; `CIFAR10` is the 35.7e6-parameter model of 32 x 32 images. Group norm
(https://arxiv.org/abs/1803.08494) over 32 groups, sinusoidal time embedding, skip connections from
each block on the way down to its mirror image on the way up, without dropout.

Images are NHWC. The noise and the time step of each image are inputs: the random numbers of a
training run are made with its data, and the step stays a function of its arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.models import training
from autoshard.models.training import Step, abstract, project

DIFFUSION_STEPS = 1000


@dataclass(frozen=True, slots=True)
class UNet:
    """The sizes of one U-Net; resolutions halve from one entry of `multipliers` to the next."""

    image: int = 256
    channels: int = 128
    multipliers: tuple[int, ...] = (1, 1, 2, 2, 4, 4)
    blocks: int = 2
    attention: tuple[int, ...] = (16,)
    groups: int = 32


CIFAR10 = UNet(image=32, multipliers=(1, 2, 2, 2))


def unet(config: UNet | None = None, batch: int = 256, *, checkpoint: bool = True) -> Step:
    """The AdamW step on `[batch, image, image, 3]` images, noise, and integer time steps.

    With `checkpoint`, each block is computed again in the backward pass.
    """
    config = config or UNet()

    def loss(params: Any, batch: Any) -> jax.Array:
        with jax.named_scope("noise"):
            kept = signal_share(batch["times"])[:, None, None, None]
            noisy = jnp.sqrt(kept) * batch["images"] + jnp.sqrt(1 - kept) * batch["noise"]
        predicted = predict(config, params, noisy, batch["times"], checkpoint=checkpoint)
        with jax.named_scope("loss"):
            return jnp.mean(jnp.square(predicted - batch["noise"]))

    images = abstract(batch, config.image, config.image, 3)
    data = {"images": images, "noise": images, "times": abstract(batch, dtype=jnp.int32)}
    return training.adamw_step(loss, weights(config), data)


def signal_share(times: jax.Array) -> jax.Array:
    """The share of the signal left after each of `times` steps, with noise linear in time."""
    noise = jnp.linspace(1e-4, 0.02, DIFFUSION_STEPS, dtype=jnp.float32)
    return training.look_up(jnp.cumprod(1 - noise), times)


def weights(config: UNet) -> dict[str, Any]:
    """The abstract parameters: `down`, `middle` and `up`, as lists over resolutions and blocks."""
    base, time_width = config.channels, 4 * config.channels
    channels, skips = base, [base]
    down, up = [], []
    last = len(config.multipliers) - 1
    for level, multiplier in enumerate(config.multipliers):
        stage: dict[str, Any] = {"blocks": []}
        for _ in range(config.blocks):
            attend = config.image >> level in config.attention
            stage["blocks"].append(_block_weights(channels, base * multiplier, time_width, attend))
            channels = base * multiplier
            skips.append(channels)
        if level < last:
            stage["shrink"] = _convolution_weights(3, channels, channels)
            skips.append(channels)
        down.append(stage)
    middle = [_block_weights(channels, channels, time_width, first) for first in (True, False)]
    for level, multiplier in reversed(list(enumerate(config.multipliers))):
        stage = {"blocks": []}
        for _ in range(config.blocks + 1):
            attend = config.image >> level in config.attention
            inputs = channels + skips.pop()
            stage["blocks"].append(_block_weights(inputs, base * multiplier, time_width, attend))
            channels = base * multiplier
        if level > 0:
            stage["grow"] = _convolution_weights(3, channels, channels)
        up.append(stage)
    return {
        "time_in": _dense_weights(base, time_width),
        "time_out": _dense_weights(time_width, time_width),
        "stem": _convolution_weights(3, 3, base),
        "down": down,
        "middle": middle,
        "up": up,
        "final_norm": _norm_weights(channels),
        "head": _convolution_weights(3, channels, 3),
    }


def _dense_weights(inputs: int, outputs: int) -> dict[str, Any]:
    return {"kernel": abstract(inputs, outputs), "bias": abstract(outputs)}


def _convolution_weights(size: int, inputs: int, outputs: int) -> dict[str, Any]:
    return {"kernel": abstract(size, size, inputs, outputs), "bias": abstract(outputs)}


def _norm_weights(channels: int) -> dict[str, Any]:
    return {"scale": abstract(channels), "bias": abstract(channels)}


def _block_weights(inputs: int, outputs: int, time_width: int, attend: bool) -> dict[str, Any]:
    block: dict[str, Any] = {
        "norm_in": _norm_weights(inputs),
        "conv_in": _convolution_weights(3, inputs, outputs),
        "time": _dense_weights(time_width, outputs),
        "norm_out": _norm_weights(outputs),
        "conv_out": _convolution_weights(3, outputs, outputs),
    }
    if inputs != outputs:
        block["shortcut"] = _dense_weights(inputs, outputs)
    if attend:
        block["attention"] = {
            "norm": _norm_weights(outputs),
            **{name: _dense_weights(outputs, outputs) for name in ("wq", "wk", "wv", "wo")},
        }
    return block


def predict(
    config: UNet, params: Any, noisy: jax.Array, times: jax.Array, *, checkpoint: bool
) -> jax.Array:
    """The noise in `noisy: [batch, image, image, 3]` after `times: [batch]` steps, in float32."""

    def block(x: jax.Array, weights: Any, time: jax.Array) -> jax.Array:
        return _block(x, weights, time, config.groups)

    block = jax.checkpoint(block) if checkpoint else block
    with jax.named_scope("time"):
        time = _time_embedding(times, config.channels).astype(jnp.bfloat16)
        time = _dense(jax.nn.silu(_dense(time, params["time_in"])), params["time_out"])
        time = jax.nn.silu(time)
    with jax.named_scope("stem"):
        x = _convolution(noisy.astype(jnp.bfloat16), params["stem"])
    skips = [x]
    for level, stage in enumerate(params["down"]):
        with jax.named_scope(f"down_{level}"):
            for index, weights in enumerate(stage["blocks"]):
                with jax.named_scope(f"block_{index}"):
                    x = block(x, weights, time)
                skips.append(x)
            if "shrink" in stage:
                x = _convolution(x, stage["shrink"], stride=2)
                skips.append(x)
    for index, weights in enumerate(params["middle"]):
        with jax.named_scope(f"middle/block_{index}"):
            x = block(x, weights, time)
    for level, stage in enumerate(params["up"]):
        with jax.named_scope(f"up_{level}"):
            for index, weights in enumerate(stage["blocks"]):
                with jax.named_scope(f"block_{index}"):
                    x = block(jnp.concatenate([x, skips.pop()], axis=-1), weights, time)
            if "grow" in stage:
                x = _convolution(_double(x), stage["grow"])
    with jax.named_scope("head"):
        x = jax.nn.silu(_group_norm(x, params["final_norm"], config.groups))
        return _convolution(x, params["head"]).astype(jnp.float32)


def _time_embedding(times: jax.Array, width: int) -> jax.Array:
    """Sines and cosines of `times` at geometric frequencies: `[batch, width]`."""
    half = width // 2
    frequencies = jnp.exp(jnp.arange(half, dtype=jnp.float32) * (-math.log(10_000) / (half - 1)))
    angles = times.astype(jnp.float32)[:, None] * frequencies
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


def _dense(x: jax.Array, weights: Any) -> jax.Array:
    return project("...c,cd->...d", x, weights["kernel"]) + weights["bias"].astype(x.dtype)


def _convolution(x: jax.Array, weights: Any, stride: int = 1) -> jax.Array:
    out = lax.conv_general_dilated(
        x,
        weights["kernel"].astype(x.dtype),
        window_strides=(stride, stride),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return out + weights["bias"].astype(x.dtype)


def _double(x: jax.Array) -> jax.Array:
    """Twice the height and width, each pixel repeated."""
    batch, height, width, channels = x.shape
    spread = jnp.broadcast_to(x[:, :, None, :, None, :], (batch, height, 2, width, 2, channels))
    return spread.reshape(batch, 2 * height, 2 * width, channels)


def _group_norm(x: jax.Array, weights: Any, groups: int) -> jax.Array:
    grouped = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
    centred = grouped - jnp.mean(grouped, axis=(1, 2, 4), keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=(1, 2, 4), keepdims=True)
    normed = (centred * lax.rsqrt(variance + 1e-6)).reshape(x.shape)
    return (normed * weights["scale"] + weights["bias"]).astype(x.dtype)


def _block(x: jax.Array, weights: Any, time: jax.Array, groups: int) -> jax.Array:
    """A residual block that adds the time embedding, and attention where it has weights for it."""
    hidden = jax.nn.silu(_group_norm(x, weights["norm_in"], groups))
    hidden = _convolution(hidden, weights["conv_in"])
    hidden = hidden + _dense(time, weights["time"])[:, None, None, :]
    hidden = jax.nn.silu(_group_norm(hidden, weights["norm_out"], groups))
    hidden = _convolution(hidden, weights["conv_out"])
    x = (_dense(x, weights["shortcut"]) if "shortcut" in weights else x) + hidden
    if "attention" not in weights:
        return x
    with jax.named_scope("attention"):
        return x + _attention(x, weights["attention"], groups)


def _attention(x: jax.Array, weights: Any, groups: int) -> jax.Array:
    """Attention of one head among all pixels."""
    batch, height, width, channels = x.shape
    normed = _group_norm(x, weights["norm"], groups).reshape(batch, height * width, channels)
    queries, keys, values = (_dense(normed, weights[name]) for name in ("wq", "wk", "wv"))
    scores = jnp.einsum("bqc,bsc->bqs", queries, keys).astype(jnp.float32)
    shares = jax.nn.softmax(scores / math.sqrt(channels), axis=-1).astype(x.dtype)
    out = jnp.einsum("bqs,bsc->bqc", shares, values)
    return _dense(out, weights["wo"]).reshape(x.shape)


def build(name: str, **sizes: Any) -> Step:
    """The built-in `name`, at its real size where `sizes` say nothing else."""
    return unet(**sizes)


def tiny(name: str, **sizes: Any) -> Step:
    """The built-in `name`, small where `sizes` say nothing else."""
    config = UNet(image=16, channels=16, multipliers=(1, 2), blocks=1, attention=(8,), groups=8)
    return unet(config, **{"batch": 8, **sizes})


def sample(args: Any, seed: int) -> Any:
    """Random arguments: time steps below `DIFFUSION_STEPS`."""
    return training.sample(args, seed, {"images": 1, "noise": 1, "times": DIFFUSION_STEPS})
