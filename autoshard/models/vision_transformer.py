"""ViT-L/16: an image classifier made of a patch convolution and a transformer encoder.

Sizes from https://arxiv.org/abs/2010.11929, table 1: 24 layers, width 1024, 16 heads, hidden
width 4096, patches of 16 x 16 pixels, 304e6 parameters with 1000 classes. Tokens are averaged
before the classifier rather than led by a class token (https://arxiv.org/abs/2205.01580): a
224 x 224 image then is 196 tokens, which can be sharded, where 197 is prime.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.models import training
from autoshard.models.annotate import LogicalAxes, constrain
from autoshard.models.attention import Attend
from autoshard.models.training import Step, abstract, layer_norm, project
from autoshard.models.transformer import STREAM
from autoshard.models.whole_attention import whole_attention


@dataclass(frozen=True, slots=True)
class VisionTransformer:
    """The sizes of one vision transformer."""

    layers: int = 24
    width: int = 1024
    heads: int = 16
    hidden: int = 4096
    patch: int = 16
    image: int = 224
    classes: int = 1000

    @property
    def tokens(self) -> int:
        """Patches of one image."""
        return (self.image // self.patch) ** 2


_QUERIES = ("batch", "length", "heads", "head_size")
_KEYS = ("batch", "kv_length", "heads", "head_size")

LOGICAL_AXES = LogicalAxes(
    parameters={
        "patch_kernel": ("height", "width", "channels", "embed"),
        "patch_bias": ("embed",),
        "positions": ("patches", "embed"),
        "attention_scale": ("norm",),
        "attention_bias": ("norm",),
        "wq": ("embed", "heads", "head_size"),
        "wq_bias": ("heads", "head_size"),
        "wk": ("embed", "heads", "head_size"),
        "wk_bias": ("heads", "head_size"),
        "wv": ("embed", "heads", "head_size"),
        "wv_bias": ("heads", "head_size"),
        "wo": ("heads", "head_size", "embed"),
        "wo_bias": ("embed",),
        "ffn_scale": ("norm",),
        "ffn_bias": ("norm",),
        "up": ("embed", "mlp"),
        "up_bias": ("mlp",),
        "down": ("mlp", "embed"),
        "down_bias": ("embed",),
        "final_scale": ("norm",),
        "final_bias": ("norm",),
        "head": ("embed", "classes"),
        "head_bias": ("classes",),
    },
    data={"images": ("batch", "height", "width", "channels"), "labels": ("batch",)},
)
"""Logical names of the step's arguments, see `autoshard.models.annotate`."""


def vision_transformer(
    config: VisionTransformer | None = None,
    batch: int = 1024,
    *,
    layers: int | None = None,
    scan: bool = True,
    checkpoint: bool = True,
    microbatches: int | None = None,
    attention: str = "plain",
) -> Step:
    """The AdamW step on `[batch, image, image, 3]` images and integer labels.

    `attention` is a kind of `autoshard.models.whole_attention`. Raises ValueError for others.
    """
    config = config or VisionTransformer()
    attend = whole_attention(attention)
    if layers is not None:
        config = replace(config, layers=layers)

    def loss(params: Any, batch: Any) -> jax.Array:
        with jax.named_scope("embed"):
            x = batch["images"].astype(jnp.bfloat16)
            kernel = params["patch_kernel"].astype(x.dtype)
            x = lax.conv_general_dilated(
                x,
                kernel,
                window_strides=(config.patch, config.patch),
                padding="VALID",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            x = x.reshape(x.shape[0], config.tokens, config.width)
            x = x + (params["patch_bias"] + params["positions"]).astype(x.dtype)
            x = constrain(x, "batch", "length", "embed")
        x, _ = training.repeat(
            partial(_layer, attend=attend), x, params["layers"], checkpoint=checkpoint
        )
        with jax.named_scope("classify"):
            x = layer_norm(x, params["final_scale"], params["final_bias"])
            pooled = jnp.mean(x.astype(jnp.float32), axis=1)
            logits = project("bd,dc->bc", pooled, params["head"]) + params["head_bias"]
            logits = constrain(logits, "batch", "classes")
        with jax.named_scope("loss"):
            return training.cross_entropy(logits, batch["labels"])

    data = {
        "images": abstract(batch, config.image, config.image, 3),
        "labels": abstract(batch, dtype=jnp.int32),
    }
    return training.adamw_step(loss, weights(config, scan=scan), data, microbatches=microbatches)


def weights(config: VisionTransformer, *, scan: bool = True) -> dict[str, Any]:
    """The abstract parameters."""
    width, heads, head_size = config.width, config.heads, config.width // config.heads
    layer = {
        "attention_scale": abstract(width),
        "attention_bias": abstract(width),
        "wq": abstract(width, heads, head_size),
        "wq_bias": abstract(heads, head_size),
        "wk": abstract(width, heads, head_size),
        "wk_bias": abstract(heads, head_size),
        "wv": abstract(width, heads, head_size),
        "wv_bias": abstract(heads, head_size),
        "wo": abstract(heads, head_size, width),
        "wo_bias": abstract(width),
        "ffn_scale": abstract(width),
        "ffn_bias": abstract(width),
        "up": abstract(width, config.hidden),
        "up_bias": abstract(config.hidden),
        "down": abstract(config.hidden, width),
        "down_bias": abstract(width),
    }
    return {
        "patch_kernel": abstract(config.patch, config.patch, 3, width),
        "patch_bias": abstract(width),
        "positions": abstract(config.tokens, width),
        "layers": training.stacked(layer, config.layers, scan=scan),
        "final_scale": abstract(width),
        "final_bias": abstract(width),
        "head": abstract(width, config.classes),
        "head_bias": abstract(config.classes),
    }


def _layer(x: jax.Array, weights: Any, *, attend: Attend) -> tuple[jax.Array, None]:
    def affine(equation: str, x: jax.Array, name: str) -> jax.Array:
        return project(equation, x, weights[name]) + weights[f"{name}_bias"].astype(x.dtype)

    with jax.named_scope("attention"):
        x = constrain(x, *STREAM)
        normed = layer_norm(x, weights["attention_scale"], weights["attention_bias"])
        normed = constrain(normed, *STREAM)
        queries = constrain(affine("bsd,dnh->bsnh", normed, "wq"), *_QUERIES)
        keys = constrain(affine("bsd,dnh->bsnh", normed, "wk"), *_KEYS)
        values = constrain(affine("bsd,dnh->bsnh", normed, "wv"), *_KEYS)
        out = constrain(attend(queries, keys, values), *_QUERIES)
        x = x + constrain(affine("bsnh,nhd->bsd", out, "wo"), *STREAM)
    with jax.named_scope("ffn"):
        normed = layer_norm(x, weights["ffn_scale"], weights["ffn_bias"])
        hidden = jax.nn.gelu(affine("bsd,df->bsf", constrain(normed, *STREAM), "up"))
        hidden = constrain(hidden, "batch", "length", "mlp")
        out = constrain(affine("bsf,fd->bsd", hidden, "down"), *STREAM)
        return constrain(x + out, *STREAM), None


def build(name: str, **sizes: Any) -> Step:
    """The built-in `name`, at its real size where `sizes` say nothing else."""
    return vision_transformer(**sizes)


def tiny(name: str, **sizes: Any) -> Step:
    """The built-in `name`, small where `sizes` say nothing else."""
    config = VisionTransformer(
        layers=2, width=32, heads=8, hidden=64, patch=4, image=16, classes=16
    )
    return vision_transformer(config, **{"batch": 16, **sizes})


def sample(args: Any, seed: int) -> Any:
    """Random arguments: labels below the number of classes."""
    return training.sample(args, seed, {"images": 1, "labels": args[0]["head"].shape[1]})
