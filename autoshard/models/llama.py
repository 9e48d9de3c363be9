"""Llama 3: training, prefill and decoding steps of the dense models, 1B to 405B.

Sizes from "The Llama 3 Herd of Models", table 3 (https://arxiv.org/abs/2407.21783), and for 1B
from https://huggingface.co/meta-llama/Llama-3.2-1B, whose embedding also is the output layer:

    model   layers   width   heads   key/value heads   hidden   vocabulary   parameters
    1B          16    2048      32                 8     8192       128256       1.24e9
    8B          32    4096      32                 8    14336       128256       8.03e9
    70B         80    8192      64                 8    28672       128256      70.6e9
    405B       126   16384     128                 8    53248       128256     405.8e9

Three modes. `train` is a next-token AdamW step on `tokens` and `targets` of shape
`[batch, sequence]` (targets come shifted, so that the sequence keeps a length that divides).
`decode` produces one token per sequence: bfloat16 weights, a key/value cache of `sequence`
positions that is donated, and one `position` shared by all sequences. Scanned layers read the cache
as it came, and their new keys and values are written into it after the last, all in one update: in
place, for nothing reads the cache after it, and in the order in which it is stored. (A cache that
the scan carries is put into another order before the scan and back after it.) `prefill` reads
prompts of `sequence` tokens with the same weights, and returns the logits of the token that follows
each, and the cache.

Logits are bfloat16 products that the loss widens to float32, so that the compiler may fuse the
widening and keep the largest tensor of the step, `[batch, sequence, vocabulary]`, in bfloat16.
Rotary frequencies are those of Llama 3.0: without the later scaling for long contexts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.models import training, transformer
from autoshard.models.annotate import LogicalAxes, constrain
from autoshard.models.attention import Attend, after_cache, causal_attention, plain
from autoshard.models.training import Step, abstract, project
from autoshard.models.transformer import STREAM


@dataclass(frozen=True, slots=True)
class Llama:
    """The sizes of one dense decoder-only transformer."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int = 128256
    theta: float = 500_000.0
    tied: bool = False

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.width // self.heads


CONFIGS = {
    "llama3-1b": Llama(16, 2048, 32, 8, 8192, tied=True),
    "llama3-8b": Llama(32, 4096, 32, 8, 14336),
    "llama3-70b": Llama(80, 8192, 64, 8, 28672),
    "llama3-405b": Llama(126, 16384, 128, 8, 53248),
}

LOGICAL_AXES = LogicalAxes(
    parameters={
        **transformer.DECODER_AXES,
        **transformer.SWIGLU_AXES,
    },
    data=transformer.TOKEN_AXES,
)
"""Logical names of the train step's arguments, see `autoshard.models.annotate`."""


def llama(
    config: Llama | str,
    batch: int = 64,
    sequence: int = 4096,
    *,
    layers: int | None = None,
    scan: bool = True,
    checkpoint: bool = True,
    microbatches: int | None = None,
    mode: Literal["train", "prefill", "decode"] = "train",
    attention: str = "plain",
) -> Step:
    """A step of one Llama: `train` on `[batch, sequence]` tokens, `prefill` of such prompts, or
    `decode` with such a cache.

    `config` is a record or a name in `CONFIGS`; `layers` overrides its depth. With `scan` the
    weights of all layers are stacked, else they are a list; with `checkpoint` each layer is
    computed again in the backward pass. With `microbatches`, gradients are accumulated. `attention`
    is one of `autoshard.models.attention.KINDS`; decoding has the plain one.
    """
    config = CONFIGS[config] if isinstance(config, str) else config
    if layers is not None:
        config = replace(config, layers=layers)
    attend = causal_attention(attention, sequence)
    if mode == "decode":
        if attend is not plain:
            raise ValueError(f"attention is {attention!r}; decoding has 'plain' attention alone")
        return _decode(config, batch, sequence, scan)
    if mode == "prefill":
        return _prefill(config, batch, sequence, scan, attend)
    if mode == "train":
        return _train(config, batch, sequence, scan, checkpoint, microbatches, attend)
    raise ValueError(f"mode is {mode!r}; it must be 'train', 'prefill' or 'decode'")


def weights(config: Llama, *, scan: bool = True, dtype: Any = jnp.float32) -> dict[str, Any]:
    """The abstract parameters."""
    layer = {
        "attention_norm": abstract(config.width, dtype=dtype),
        **transformer.attention_weights(
            config.width, config.heads, config.kv_heads, config.head_size, dtype
        ),
        "ffn_norm": abstract(config.width, dtype=dtype),
        **transformer.swiglu_weights(config.width, config.hidden, dtype),
    }
    params = {
        "embedding": abstract(config.vocabulary, config.width, dtype=dtype),
        "layers": training.stacked(layer, config.layers, scan=scan),
        "final_norm": abstract(config.width, dtype=dtype),
    }
    if not config.tied:
        params["unembedding"] = abstract(config.width, config.vocabulary, dtype=dtype)
    return params


def logits_of(params: Any, x: jax.Array) -> jax.Array:
    """Next-token logits `[b, s, vocabulary]`; without an output layer, by the embedding."""
    with jax.named_scope("unembed"):
        x = transformer.rms_norm(x, params["final_norm"])
        if "unembedding" in params:
            logits = project("bsd,dv->bsv", x, params["unembedding"])
        else:
            logits = project("bsd,vd->bsv", x, params["embedding"])
        return constrain(logits, "batch", "length", "vocab")


def _train(
    config: Llama,
    batch: int,
    sequence: int,
    scan: bool,
    checkpoint: bool,
    microbatches: int | None,
    attend: Attend,
) -> Step:
    tokens = abstract(batch, sequence, dtype=jnp.int32)

    def layer(x: jax.Array, weights: Any, angles: jax.Array) -> tuple[jax.Array, None]:
        with jax.named_scope("attention"):
            x = constrain(x, *STREAM)
            normed = constrain(transformer.rms_norm(x, weights["attention_norm"]), *STREAM)
            x = x + constrain(transformer.attention(weights, normed, angles, attend), *STREAM)
        with jax.named_scope("ffn"):
            normed = constrain(transformer.rms_norm(x, weights["ffn_norm"]), *STREAM)
            out = constrain(transformer.swiglu(weights, normed), *STREAM)
            return constrain(x + out, *STREAM), None

    def loss(params: Any, batch: Any) -> jax.Array:
        with jax.named_scope("embed"):
            x = training.look_up(params["embedding"], batch["tokens"]).astype(jnp.bfloat16)
            x = constrain(x, "batch", "length", "embed")
            angles = transformer.rotary_angles(jnp.arange(sequence), config.head_size, config.theta)
        x, _ = training.repeat(layer, x, params["layers"], angles, checkpoint=checkpoint)
        logits = logits_of(params, x)
        with jax.named_scope("loss"):
            return training.cross_entropy(logits, batch["targets"])

    data = {"tokens": tokens, "targets": tokens}
    return training.adamw_step(loss, weights(config, scan=scan), data, microbatches=microbatches)


def _prefill(config: Llama, batch: int, length: int, scan: bool, attend: Attend) -> Step:
    params = weights(config, scan=scan, dtype=jnp.bfloat16)

    def layer(x: jax.Array, weights: Any, angles: jax.Array) -> tuple[jax.Array, Any]:
        with jax.named_scope("attention"):
            normed = transformer.rms_norm(x, weights["attention_norm"])
            queries, keys, values = transformer.queries_keys_values(weights, normed, angles)
            out = attend(queries, keys, values)
            x = x + project("bsnh,nhd->bsd", out, weights["wo"])
        with jax.named_scope("ffn"):
            normed = transformer.rms_norm(x, weights["ffn_norm"])
            return x + transformer.swiglu(weights, normed), {"keys": keys, "values": values}

    def prefill_step(params: Any, tokens: jax.Array) -> tuple[jax.Array, Any]:
        with jax.named_scope("embed"):
            x = training.look_up(params["embedding"], tokens)
            angles = transformer.rotary_angles(jnp.arange(length), config.head_size, config.theta)
        x, cache = training.repeat(layer, x, params["layers"], angles, checkpoint=False)
        return logits_of(params, x[:, -1:])[:, 0], cache

    tokens = abstract(batch, length, dtype=jnp.int32)
    return Step(prefill_step, (params, tokens), {"donate_argnums": ()})


def _decode(config: Llama, batch: int, context: int, scan: bool) -> Step:
    params = weights(config, scan=scan, dtype=jnp.bfloat16)
    block = abstract(batch, context, config.kv_heads, config.head_size, dtype=jnp.bfloat16)
    cache = training.stacked({"keys": block, "values": block}, config.layers, scan=scan)

    def layer(
        x: jax.Array, one: tuple[Any, Any], position: jax.Array, angles: jax.Array
    ) -> tuple[jax.Array, Any]:
        weights, cache = one
        with jax.named_scope("attention"):
            normed = transformer.rms_norm(x, weights["attention_norm"])
            queries, keys, values = transformer.queries_keys_values(weights, normed, angles)
            new = {"keys": keys, "values": values}
            out = after_cache(queries, keys, values, cache, position)
            x = x + project("bsnh,nhd->bsd", out, weights["wo"])
        with jax.named_scope("ffn"):
            normed = transformer.rms_norm(x, weights["ffn_norm"])
            x = x + transformer.swiglu(weights, normed)
        return x, new

    def decode_step(
        params: Any, cache: Any, tokens: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, Any]:
        with jax.named_scope("embed"):
            x = training.look_up(params["embedding"], tokens)[:, None, :]
            angles = transformer.rotary_angles(position[None], config.head_size, config.theta)
        if scan:
            layers = (params["layers"], cache)
            x, new = training.repeat(layer, x, layers, position, angles, checkpoint=False)
        else:
            new = []
            for index, one in enumerate(zip(params["layers"], cache, strict=True)):
                with jax.named_scope(f"layer_{index}"):
                    x, rows = layer(x, one, position, angles)
                new.append(rows)
        with jax.named_scope("cache"):
            cache = _write(cache, new, position)
        return logits_of(params, x)[:, 0], cache

    tokens, position = abstract(batch, dtype=jnp.int32), abstract(dtype=jnp.int32)
    return Step(decode_step, (params, cache, tokens, position), {"donate_argnums": (1,)})


def _write(cache: Any, new: Any, position: jax.Array) -> Any:
    """Put keys and values `[..., b, 1, k, h]` into those of the cache `[..., b, s, k, h]`."""

    def write(old: jax.Array, row: jax.Array) -> jax.Array:
        start = (*(0,) * (old.ndim - 3), position, 0, 0)
        return lax.dynamic_update_slice(old, row, start, allow_negative_indices=False)

    return jax.tree.map(write, cache, new)


def build(name: str, **sizes: Any) -> Step:
    """The built-in `name`, at its real size where `sizes` say nothing else."""
    config = CONFIGS["-".join(name.split("-")[:2])]
    if name.endswith("-decode"):
        return llama(config, **{"sequence": 8192, "mode": "decode", **sizes})
    if name.endswith("-prefill"):
        return llama(config, **{"batch": 4, "sequence": 8192, "mode": "prefill", **sizes})
    largest = config is CONFIGS["llama3-405b"]
    usual = {"batch": 256, "sequence": 8192} if largest else {}
    return llama(config, **{**usual, "scan": not name.endswith("-unrolled"), **sizes})


def tiny(name: str, **sizes: Any) -> Step:
    """The built-in `name`, small where `sizes` say nothing else."""
    real = CONFIGS["-".join(name.split("-")[:2])]
    config = replace(
        real,
        layers=3 if real.layers > 100 else 2,
        width=64,
        heads=8,
        kv_heads=8 if real.tied else 4,
        hidden=128,
        vocabulary=128,
    )
    small = {"batch": 8, "sequence": 16}
    if name.endswith("-decode"):
        return llama(config, **{**small, "mode": "decode", **sizes})
    if name.endswith("-prefill"):
        return llama(config, **{**small, "mode": "prefill", **sizes})
    return llama(config, **{**small, "scan": not name.endswith("-unrolled"), **sizes})


def sample(args: Any, seed: int) -> Any:
    """Random arguments: tokens below the vocabulary; decoding starts at position 0."""
    vocabulary = args[0]["embedding"].shape[0]
    if len(args) == 4:
        params, cache, tokens, position = args
        named = training.sample(
            {"params": params, "cache": cache, "tokens": tokens, "position": position},
            seed,
            {"tokens": vocabulary},
        )
        return named["params"], named["cache"], named["tokens"], named["position"]
    if len(args) == 2:
        named = training.sample(
            dict(zip(("params", "tokens"), args, strict=True)), seed, {"tokens": vocabulary}
        )
        return named["params"], named["tokens"]
    return training.sample(args, seed, {"tokens": vocabulary, "targets": vocabulary})
