"""One layer of a decoder of any dimensions: its weights, and what it computes.

Latent attention, where the dimensions say so, is DeepSeek-V2's: queries, keys and values are made
of narrower arrays, and part of each key is shared by all heads (https://arxiv.org/abs/2405.04434).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from autoshard.models import training, transformer
from autoshard.models.annotate import constrain
from autoshard.models.attention import cudnn, plain
from autoshard.models.decoder_sizes import Decoder
from autoshard.models.narrow_products import project_in
from autoshard.models.splash import splash
from autoshard.models.state_space import mixed, state_weights
from autoshard.models.training import abstract
from autoshard.models.transformer import STREAM

NAMES = (
    "query_proj",
    "key_proj",
    "value_proj",
    "context",
    "out_proj",
    "mlpwi_0",
    "mlpwi_1",
    "mlpwo",
    "expert_in",
    "expert_out",
    "state_proj",
)
"""Of what a layer computes: products with weights, what attention or a state-space mixer returns
(`context`), and tokens as experts get them and as they come back (`expert_in`, `expert_out`)."""
Attention = Literal["plain", "flash", "cudnn"]


def layer_weights(config: Decoder, kind: str) -> dict[str, Any]:
    """The abstract weights of one layer of a kind, in float32."""
    if kind == "state_layers":
        return state_weights(config)
    one: dict[str, Any] = {}
    if not config.pattern or kind == "attention_layers":
        one |= _attention_weights(config)
    if kind != "attention_layers":
        one |= _feed_forward_weights(config, kind)
    return one


def _attention_weights(config: Decoder) -> dict[str, Any]:
    width, heads = config.width, config.heads
    one: dict[str, Any] = {"attention_norm": abstract(width)}
    if config.latent:
        latent, queries = config.latent, config.query_latent or width
        one["latent_down"] = abstract(width, latent)
        one["key_up"] = abstract(latent, heads, config.head_size - config.shared_size)
        if config.shared_size:
            one["key_shared"] = abstract(width, config.shared_size)
        one["value_up"] = abstract(latent, heads, config.value_size)
        if config.query_latent:
            one["query_down"] = abstract(width, queries)
        one["query_up"] = abstract(queries, heads, config.head_size)
        one["wo"] = abstract(heads, config.value_size, width)
    else:
        one |= transformer.attention_weights(
            width, heads, config.kv_heads, config.head_size, jnp.float32
        )
    return one


def _feed_forward_weights(config: Decoder, kind: str) -> dict[str, Any]:
    width = config.width
    one: dict[str, Any] = {"ffn_norm": abstract(width)}
    if config.experts and kind != "dense_layers":
        experts, hidden, inner = config.experts, config.expert_hidden, config.expert_width
        one["router"] = abstract(width, experts)
        if config.expert_latent:
            one["expert_narrow"] = abstract(width, inner)
            one["expert_widen"] = abstract(inner, width)
        names = ("gate", "up", "down") if config.gated else ("up", "down")
        for name in names:
            shape = (hidden, inner) if name == "down" else (inner, hidden)
            one[f"expert_{name}"] = abstract(experts, *shape)
            if config.shared_hidden:
                shared = config.shared_hidden
                shape = (shared, width) if name == "down" else (width, shared)
                one[f"shared_{name}"] = abstract(*shape)
        return one
    dense = transformer.swiglu_weights(width, config.hidden, jnp.float32)
    return one | {name: dense[name] for name in dense if config.gated or name != "gate"}


@dataclass(frozen=True, slots=True)
class Layer:
    """What a layer computes.

    Attributes:
      config: dimensions.
      attention, products, block: see `autoshard.models.decoder`.
    """

    config: Decoder
    attention: Attention
    products: str
    block: int

    def __call__(self, kind: str, x: jax.Array, weights: Any, angles: jax.Array) -> jax.Array:
        """One layer on `x: [b, s, d]`: what its weights are for."""
        if "state_norm" in weights:
            with jax.named_scope("mixer"):
                x = constrain(x, *STREAM)
                normed = constrain(transformer.rms_norm(x, weights["state_norm"]), *STREAM)
                return constrain(
                    x + constrain(mixed(self.project, weights, normed), *STREAM), *STREAM
                )
        if "attention_norm" in weights:
            with jax.named_scope("attention"):
                x = constrain(x, *STREAM)
                normed = constrain(transformer.rms_norm(x, weights["attention_norm"]), *STREAM)
                x = x + constrain(self._attention(kind, weights, normed, angles), *STREAM)
        if "ffn_norm" not in weights:
            return constrain(x, *STREAM)
        with jax.named_scope("ffn"):
            normed = constrain(transformer.rms_norm(x, weights["ffn_norm"]), *STREAM)
            if "router" in weights:
                out = self._experts(weights, normed)
                if self.config.shared_hidden:
                    out = out + self._feed_forward(weights, normed, "shared_")
            else:
                out = self._feed_forward(weights, normed, "")
            return constrain(x + constrain(out, *STREAM), *STREAM)

    def project(self, equation: str, x: jax.Array, weight: jax.Array, name: str = "") -> jax.Array:
        """A product with a weight in the dtype of products, under a name that `remat` may keep."""
        out = project_in(self.products, equation, x, weight)
        return checkpoint_name(out, name) if name else out

    def _attention(self, kind: str, weights: Any, x: jax.Array, angles: jax.Array) -> jax.Array:
        config = self.config
        if config.latent:
            queries = x
            if config.query_latent:
                queries = self.project("bsd,dl->bsl", x, weights["query_down"])
            queries = self.project("bsl,lnh->bsnh", queries, weights["query_up"], "query_proj")
            latent = self.project("bsd,dl->bsl", x, weights["latent_down"])
            keys = self.project("bsl,lnh->bsnh", latent, weights["key_up"], "key_proj")
            if config.shared_size:
                shared = self.project("bsd,dh->bsh", x, weights["key_shared"])[:, :, None]
                shared = jnp.broadcast_to(shared, (*keys.shape[:3], config.shared_size))
                keys = jnp.concatenate([keys, shared], axis=-1)
            values = self.project("bsl,lnh->bsnh", latent, weights["value_up"], "value_proj")
            kv_heads = "heads"
        else:
            queries = self.project("bsd,dnh->bsnh", x, weights["wq"], "query_proj")
            keys = self.project("bsd,dkh->bskh", x, weights["wk"], "key_proj")
            values = self.project("bsd,dkh->bskh", x, weights["wv"], "value_proj")
            kv_heads = "kv_heads"
        queries, keys = transformer.rotate(queries, angles), transformer.rotate(keys, angles)
        queries = constrain(queries, "batch", "length", "heads", "head_size")
        keys = constrain(keys, "batch", "kv_length", kv_heads, "head_size")
        values = constrain(values, "batch", "kv_length", kv_heads, "head_size")
        everywhere = kind != "local_layers" and config.full_every
        window = 0 if everywhere else config.window
        if self.attention == "flash":
            out = splash(queries, keys, values, window=window, block=self.block)
        elif self.attention == "cudnn":
            out = checkpoint_name(cudnn(queries, keys, values, window=window), "context")
        else:
            out = checkpoint_name(plain(queries, keys, values), "context")
        out = constrain(out, "batch", "length", "heads", "head_size")
        return self.project("bsnh,nhd->bsd", out, weights["wo"], "out_proj")

    def _feed_forward(self, weights: Any, x: jax.Array, prefix: str) -> jax.Array:
        up = self.project("bsd,df->bsf", x, weights[f"{prefix}up"], "mlpwi_1")
        if self.config.gated:
            gate = self.project("bsd,df->bsf", x, weights[f"{prefix}gate"], "mlpwi_0")
            hidden = jax.nn.silu(gate) * up
        else:
            hidden = jnp.square(jax.nn.relu(up)) if self.config.experts else jax.nn.gelu(up)
        hidden = constrain(hidden, "batch", "length", "mlp")
        return self.project("bsf,fd->bsd", hidden, weights[f"{prefix}down"], "mlpwo")

    def _experts(self, weights: Any, x: jax.Array) -> jax.Array:
        config = self.config
        batch, sequence, width = x.shape
        grouped = x.reshape(batch, sequence // config.group, config.group, width)
        experts_of, slots_of, tokens_of = balanced(config)
        with jax.named_scope("router"):
            logits = training.project("bgtd,de->bgte", grouped, weights["router"])
            shares = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
            shares, _ = lax.top_k(shares, config.active)
        if config.expert_latent:
            grouped = self.project("bgtd,de->bgte", grouped, weights["expert_narrow"])
        width = config.expert_width
        inputs = _rows(grouped, tokens_of).reshape(*grouped.shape[:2], config.experts, -1, width)
        inputs = constrain(inputs, "expert_batch", "group", "expert", "slot", "embed")
        inputs = checkpoint_name(inputs, "expert_in")
        up = self.project("bgecd,edf->bgecf", inputs, weights["expert_up"], "mlpwi_1")
        if config.gated:
            gate = self.project("bgecd,edf->bgecf", inputs, weights["expert_gate"], "mlpwi_0")
            hidden = jax.nn.silu(gate) * up
        else:
            hidden = jnp.square(jax.nn.relu(up))
        hidden = constrain(hidden, "expert_batch", "group", "expert", "slot", "mlp")
        out = self.project("bgecf,efd->bgecd", hidden, weights["expert_down"], "mlpwo")
        out = constrain(out, "expert_batch", "group", "expert", "slot", "embed")
        out = constrain(out, "batch", "group", "expert_rows", "slot", "embed")
        rows = out.reshape(*out.shape[:2], -1, width)
        places = experts_of * config.slots + slots_of
        back = _rows(rows, places.reshape(-1)).reshape(*grouped.shape[:3], config.active, width)
        back = checkpoint_name(back, "expert_out")
        out = jnp.einsum("bgtad,bgta->bgtd", back, shares.astype(x.dtype))
        if config.expert_latent:
            out = self.project("bgte,ed->bgtd", out, weights["expert_widen"])
        return out.reshape(x.shape)


def _rows(x: jax.Array, places: np.ndarray) -> jax.Array:
    """Rows `places` of dimension 2 of `x: [b, g, t, d]`."""
    return x.at[:, :, places].get(mode="promise_in_bounds", wrap_negative_indices=False)


def balanced(config: Decoder) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who goes where in a group: experts and slots `[t, active]` of each token, and the token
    `[experts x slots]` of each slot. Token `t` uses experts `t active, t active + 1, ...`.
    """
    uses = np.arange(config.group * config.active)
    experts, slots = uses % config.experts, uses // config.experts
    tokens = np.zeros(config.experts * config.slots, np.int32)
    tokens[experts * config.slots + slots] = uses // config.active
    shape = (config.group, config.active)
    return experts.reshape(shape), slots.reshape(shape), tokens
