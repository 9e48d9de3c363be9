"""Steps of a serving engine: one token for each sequence of a batch, or prompts read at once.

    narrow = Precision("float8_e4m3fn", "float8_e4m3fn")
    step = engine_step("llama2-70b", "decode", batch=64, length=192, precision=narrow)

A step is made of products with weights and of the kernels of `autoshard.models.engine.kernels`,
in the order in which engines for NVIDIA GPUs run them (github.com/NVIDIA/TensorRT-LLM,
docs/source/blogs/tech_blog, blog1, "Everything in One Diagram"): queries, keys and values are one
product, so are gate and up; a norm adds the residual and casts for the product after it. Latent
attention has queries brought into the latent, where the cache lies, and values brought out of it
(https://arxiv.org/abs/2412.19437, section 2.1.1); a prompt is read in the wide form. The cache
has a head's places one after another. Layers are lists: nothing is sliced from a stack.

Experts are chosen by force in equal numbers, as benchmarks do; what is read of them is what tokens
that choose at random read.

Left out, which an engine also does: writing keys and values anywhere but once, sampling, gathering
logits over ranks, and all that runs on hosts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from autoshard.models.annotate import LogicalAxes, constrain
from autoshard.models.decoder_sizes import Decoder, sizes_of
from autoshard.models.engine import kernels
from autoshard.models.training import Step, abstract

Mode = Literal["decode", "prefill"]


@dataclass(frozen=True, slots=True)
class Precision:
    """Dtypes of what an engine holds.

    Attributes:
      weights: of the layers' products, and of what is multiplied with them.
      cache: of keys and values.
      experts: of the weights of experts, those that all tokens use too; "" for that of `weights`.
      expert_products: of the products with these; "" for that of `experts`.
    """

    weights: str = "bfloat16"
    cache: str = "bfloat16"
    experts: str = ""
    expert_products: str = ""

    def __post_init__(self) -> None:
        if not self.experts:
            object.__setattr__(self, "experts", self.weights)
        if not self.expert_products:
            object.__setattr__(self, "expert_products", self.experts)


AXES = LogicalAxes(
    parameters={
        "embedding": ("whole", "embed"),
        "unembedding": ("embed", "vocab"),
        "final_norm": ("embed",),
        "attention_norm": ("embed",),
        "ffn_norm": ("embed",),
        "query_key_value": ("embed", "kv_heads", "group", "head_size"),
        "out": ("kv_heads", "group", "head_size", "embed"),
        "latent_down": ("embed", "latent"),
        "query_up": ("latent", "heads", "head_size"),
        "key_up": ("heads", "head_size", "latent"),
        "value_up": ("latent", "heads", "head_size"),
        "latent_out": ("heads", "head_size", "embed"),
        "gate_up": ("embed", "pair", "mlp"),
        "down": ("mlp", "embed"),
        "shared_gate_up": ("embed", "pair", "mlp"),
        "shared_down": ("mlp", "embed"),
        "router": ("embed", "choice"),
        "expert_gate_up": ("expert", "embed", "pair", "expert_mlp"),
        "expert_down": ("expert", "expert_mlp", "embed"),
    },
    data={
        "tokens": ("batch",),
        "prompts": ("batch", "length"),
        "keys": ("batch", "kv_heads", "length", "head_size"),
        "values": ("batch", "kv_heads", "length", "head_size"),
        "latent": ("batch", "length", "latent"),
    },
)
"""Logical names of a step's arguments, see `autoshard.models.annotate`."""


def engine_step(
    config: Decoder | str,
    mode: Mode,
    *,
    batch: int,
    length: int,
    precision: Precision = Precision(),
    kinds: dict[str, int] | None = None,
) -> Step:
    """A step that makes a token for each of `batch` sequences.

    Args:
      config: dimensions, or the name of a published model.
      mode: "decode" with a cache of `length` places, or "prefill" of prompts of `length` tokens.
      batch: sequences.
      length: places of the cache that are read, or tokens of a prompt.
      precision: dtypes.
      kinds: how many layers there are of each kind, in place of the config's.

    Raises:
      ValueError: the model has what no engine step has (state-space mixers, projections of tokens
        before experts), or there is no such model.
    """
    config = sizes_of(config) if isinstance(config, str) else config
    faults = [name for name in ("pattern", "expert_latent") if getattr(config, name)]
    if faults:
        raise ValueError(f"no step of an engine is known for a model with {' and '.join(faults)}")
    counts = config.kinds if kinds is None else kinds
    one = _Step(config, mode, precision, tuple(k for k, n in counts.items() for _ in range(n)))
    params = one.weights()
    tokens = abstract(batch, dtype=jnp.int32)
    if mode == "prefill":
        prompts = {"prompts": abstract(batch, length, dtype=jnp.int32)}
        return Step(one.prefill, (params, prompts), {})
    cache = [one.cache(kind, batch, length) for kind in one.kinds]
    return Step(one.decode, (params, {"tokens": tokens}, cache), {})


@dataclass(frozen=True, slots=True)
class _Step:
    config: Decoder
    mode: Mode
    precision: Precision
    kinds: tuple[str, ...]

    @property
    def group(self) -> int:
        return self.config.heads // self.config.kv_heads

    def window(self, kind: str) -> int:
        """Tokens that a layer of a kind looks back at; 0 for all."""
        config = self.config
        return 0 if kind != "local_layers" and config.full_every else config.window

    # -- arguments ---------------------------------------------------------------------------------

    def weights(self) -> dict[str, Any]:
        config = self.config
        table = abstract(config.vocabulary, config.width, dtype=jnp.bfloat16)
        return {
            "embedding": table,
            "unembedding": abstract(config.width, config.vocabulary, dtype=jnp.bfloat16),
            "final_norm": abstract(config.width, dtype=jnp.bfloat16),
            "layers": [self._layer(kind) for kind in self.kinds],
        }

    def _layer(self, kind: str) -> dict[str, Any]:
        config, dtype = self.config, self.precision.weights
        width, heads, size = config.width, config.heads, config.head_size
        found = {
            name: abstract(width, dtype=jnp.bfloat16) for name in ("attention_norm", "ffn_norm")
        }

        def add(name: str, *shape: int, dtype: str = dtype) -> None:
            found[name] = abstract(*shape, dtype=jnp.dtype(dtype))

        if config.latent:
            latent = config.latent + config.shared_size
            add("latent_down", width, config.query_latent + latent)
            add("query_up", config.query_latent or width, heads, size)
            add("key_up", heads, size - config.shared_size, config.latent, dtype="bfloat16")
            add("value_up", config.latent, heads, config.value_size, dtype="bfloat16")
            add("latent_out", heads, config.value_size, width)
        else:
            add("query_key_value", width, config.kv_heads, self.group + 2, size)
            add("out", config.kv_heads, self.group, size, width)
        pair, narrow = 2 if config.gated else 1, self.precision.experts
        if not config.experts or kind == "dense_layers":
            add("gate_up", width, pair, config.hidden)
            add("down", config.hidden, width)
            return found
        if config.shared_hidden:
            add("shared_gate_up", width, pair, config.shared_hidden, dtype=narrow)
            add("shared_down", config.shared_hidden, width, dtype=narrow)
        experts, hidden = config.experts, config.expert_hidden
        add("router", width, experts, dtype="bfloat16")
        add("expert_gate_up", experts, width, pair, hidden, dtype=narrow)
        add("expert_down", experts, hidden, width, dtype=narrow)
        return found

    def cache(self, kind: str, batch: int, length: int) -> dict[str, Any]:
        config, dtype = self.config, jnp.dtype(self.precision.cache)
        length = min(length, self.window(kind) or length)
        if config.latent:
            width = config.latent + config.shared_size
            return {"latent": abstract(batch, length, width, dtype=dtype)}
        one = abstract(batch, config.kv_heads, length, config.head_size, dtype=dtype)
        return {"keys": one, "values": one}

    # -- steps -------------------------------------------------------------------------------------

    def decode(self, params: Any, data: Any, cache: Any) -> tuple[jax.Array, Any]:
        """Logits `[b, v]` and the new keys and values of every layer."""
        return self._run(params, data["tokens"], cache, 1)

    def prefill(self, params: Any, data: Any) -> tuple[jax.Array, Any]:
        """Logits of the last token of each prompt, and keys and values of all."""
        prompts = data["prompts"]
        cache = [None] * len(self.kinds)
        return self._run(params, prompts.reshape(-1), cache, prompts.shape[1])

    def _run(self, params: Any, ids: jax.Array, cache: Any, length: int) -> tuple[jax.Array, Any]:
        weights = self.precision.weights
        with jax.named_scope("embed"):
            x = constrain(kernels.look_up(ids, params["embedding"]), "batch", "embed")
        update, new = jnp.zeros_like(x), []
        for number, (kind, layer) in enumerate(zip(self.kinds, params["layers"], strict=True)):
            with jax.named_scope(f"layer_{number}"):
                with jax.named_scope("attention"):
                    x, normed = self._norm(x, update, layer["attention_norm"], weights, number == 0)
                    update, kept = self._attention(kind, layer, normed, cache[number], length)
                    update = constrain(update, "batch", "embed")
                with jax.named_scope("ffn"):
                    x, normed = self._norm(x, update, layer["ffn_norm"], weights)
                    update = constrain(self._feed_forward(layer, normed), "batch", "embed")
                new.append(kept)
        with jax.named_scope("unembed"):
            if length > 1:  # of each prompt the last token alone
                x, update = (one.reshape(-1, length, one.shape[1])[:, -1] for one in (x, update))
            _, normed = self._norm(x, update, params["final_norm"], "bfloat16")
            logits = kernels.narrow_product("bd,dv->bv", normed, params["unembedding"])
            return constrain(logits, "batch", "vocab"), new

    def _norm(
        self, x: Any, update: Any, scale: Any, dtype: str, first: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        if first:
            return x, kernels.norm_alone(dtype)(x, scale)
        return kernels.normed(dtype)(x, update, scale)

    def _attention(
        self, kind: str, layer: Any, x: jax.Array, cache: Any, length: int
    ) -> tuple[jax.Array, Any]:
        if self.config.latent:
            return self._latent(layer, x, cache, length)
        config, dtype = self.config, self.precision.weights
        mixed = kernels.narrow_product("bd,dkjh->bkjh", x, layer["query_key_value"])
        mixed = constrain(mixed, "batch", "kv_heads", "group", "head_size")
        told = self.precision.cache if length == 1 else "bfloat16"
        queries, keys, values = kernels.turned(self.group, told)(mixed)
        if length == 1:
            out = kernels.over_cache(dtype)(queries, cache["keys"], cache["values"])
        else:
            apart = (one.reshape(-1, length, *one.shape[1:]) for one in (queries, keys, values))
            out = kernels.over_prompt(dtype, self.window(kind))(*apart)
            out = out.reshape(-1, config.kv_heads, self.group, config.head_size)
        out = constrain(out, "batch", "kv_heads", "group", "head_size")
        return kernels.narrow_product("bkgh,kghd->bd", out, layer["out"]), (keys, values)

    def _latent(self, layer: Any, x: Any, cache: Any, length: int) -> tuple[jax.Array, Any]:
        config, dtype = self.config, self.precision.weights
        narrow = kernels.narrow_product("bd,dl->bl", x, layer["latent_down"])
        cut = config.query_latent
        ask = x if not cut else cast_norm(narrow[:, :cut], dtype)
        kept = narrow[:, cut:]
        queries = kernels.narrow_product("bl,lnh->bnh", ask, layer["query_up"])
        queries = constrain(queries, "batch", "heads", "head_size")
        plain = config.head_size - config.shared_size
        if length == 1:
            inner = kernels.narrow_product("bnh,nhl->bnl", queries[..., :plain], layer["key_up"])
            inner = jnp.concatenate([inner, queries[..., plain:]], axis=-1)
            scale = 1.0 / math.sqrt(config.head_size)
            out = kernels.over_latent(config.latent, scale)(inner, cache["latent"])
            out = kernels.narrow_product("bnl,lnh->bnh", out, layer["value_up"])
        else:
            latent = kept[:, : config.latent]
            keys = kernels.narrow_product("bl,nhl->bnh", latent, layer["key_up"])
            shared = jnp.broadcast_to(
                kept[:, None, config.latent :], (*keys.shape[:2], config.shared_size)
            )
            keys = jnp.concatenate([keys, shared], axis=-1)
            values = kernels.narrow_product("bl,lnh->bnh", latent, layer["value_up"])
            apart = (one.reshape(-1, length, *one.shape[1:]) for one in (queries, keys, values))
            asked, keys, values = apart
            out = kernels.over_prompt("bfloat16", 0)(asked[:, :, :, None], keys, values)
            out = out.reshape(-1, config.heads, config.value_size)
        out = constrain(kernels.cast(out, dtype), "batch", "heads", "head_size")
        return kernels.narrow_product("bnh,nhd->bd", out, layer["latent_out"]), kept

    def _feed_forward(self, layer: Any, x: jax.Array) -> jax.Array:
        if "gate_up" in layer:
            return self._dense(layer, x, "")
        config, dtype = self.config, self.precision.expert_products
        numbers = constrain(jnp.arange(config.experts), "expert")
        with jax.named_scope("router"):
            chosen = kernels.narrow_product("bd,de->be", x, layer["router"])
            shares = kernels.shares_of(config.active)(chosen)
        wide = kernels.cast(x, dtype)
        first = kernels.experts_in(config.active, config.experts, dtype)
        pair = first(wide, layer["expert_gate_up"], numbers)
        pair = constrain(pair, "expert", "slot", "pair", "expert_mlp")
        hidden = kernels.expert_activated(dtype, gated=config.gated)(pair)
        second = kernels.experts_out(config.active, config.experts)
        out = second(hidden, layer["expert_down"], numbers, shares)
        return out + self._dense(layer, x, "shared_") if self.config.shared_hidden else out

    def _dense(self, layer: Any, x: jax.Array, prefix: str) -> jax.Array:
        pair = kernels.narrow_product("bd,dcf->bcf", x, layer[f"{prefix}gate_up"])
        pair = constrain(pair, "batch", "pair", "mlp")
        dtype = str(layer[f"{prefix}down"].dtype)
        hidden = kernels.activated(dtype, gated=self.config.gated)(pair)
        return kernels.narrow_product("bf,fd->bd", hidden, layer[f"{prefix}down"])


def cast_norm(x: jax.Array, dtype: str) -> jax.Array:
    """The norm of a latent, in a dtype."""
    return kernels.norm_alone(dtype)(x, jnp.ones(x.shape[-1:], x.dtype))
