"""Mixtral 8x7B: a sparse mixture-of-experts transformer, as a training step.

Sizes from https://arxiv.org/abs/2401.04088, table 1: 32 layers, width 4096, 32 heads, 8 key/value
heads, 8 experts of hidden width 14336 of which 2 are active, vocabulary 32000, 46.7e9 parameters.

By default dispatch is GShard's (https://arxiv.org/abs/2006.16668, section 3.2). The tokens of a
sequence are split into groups, and each expert accepts at most

    capacity = ceil(active * group / experts * capacity_factor)

tokens per group (rounded up to a multiple of 8), in order of choice, then of position; an expert
does not see the tokens over its capacity.
One-hot `dispatch` and weighted `combine` tensors `[b, g, t, e, c]` (sequence, group, token,
expert, slot) turn routing into einsums, so that sharding the experts becomes an all-to-all. The
load-balance loss is `experts * sum(share of first choices * mean probability)`
(https://arxiv.org/abs/2101.03961, section 2.2). The router computes in float32.

With `moe="dropless"` no token is dropped (MegaBlocks, https://arxiv.org/abs/2211.15841): the rows
of all tokens are sorted by their experts, and three ragged products multiply each row by its
expert's matrices (`jax.lax.ragged_dot`). A row is looked up in its place, and back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.models import training, transformer
from autoshard.models.annotate import LogicalAxes, constrain
from autoshard.models.attention import causal_attention
from autoshard.models.training import Step, abstract, project
from autoshard.models.transformer import STREAM


@dataclass(frozen=True, slots=True)
class Mixtral:
    """The sizes of one mixture-of-experts transformer."""

    layers: int = 32
    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14336
    vocabulary: int = 32000
    theta: float = 1_000_000.0
    experts: int = 8
    active: int = 2
    group: int = 1024
    capacity_factor: float = 1.25
    balance_coefficient: float = 0.02

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    @property
    def capacity(self) -> int:
        """Slots of one expert for one group of tokens, rounded up to a multiple of 8."""
        slots = self.active * self.group / self.experts * self.capacity_factor
        return 8 * math.ceil(slots / 8)


LOGICAL_AXES = LogicalAxes(
    parameters={
        **transformer.DECODER_AXES,
        "router": ("embed", "choice"),
        "gate": ("expert", "embed", "mlp"),
        "up": ("expert", "embed", "mlp"),
        "down": ("expert", "mlp", "embed"),
    },
    data=transformer.TOKEN_AXES,
)
"""Logical names of the step's arguments, see `autoshard.models.annotate`."""


def mixtral(
    config: Mixtral | None = None,
    batch: int = 64,
    sequence: int = 4096,
    *,
    layers: int | None = None,
    scan: bool = True,
    checkpoint: bool = True,
    microbatches: int | None = None,
    attention: str = "plain",
    moe: str = "capacity",
) -> Step:
    """The AdamW step of a mixture of experts on `[batch, sequence]` tokens.

    `attention` is one of `autoshard.models.attention.KINDS`; `moe` is "capacity" or "dropless".

    Raises ValueError if the groups do not divide the sequence, and for other words.
    """
    config = config or Mixtral()
    if layers is not None:
        config = replace(config, layers=layers)
    if moe not in MIXTURES:
        raise ValueError(f"moe is {moe!r}; it must be one of {', '.join(MIXTURES)}")
    if moe == "capacity" and sequence % config.group:
        raise ValueError(
            f"groups of {config.group} tokens do not divide a sequence of {sequence}; "
            "choose a group that does"
        )
    attend = causal_attention(attention, sequence)
    tokens = abstract(batch, sequence, dtype=jnp.int32)

    def layer(x: jax.Array, weights: Any, angles: jax.Array) -> tuple[jax.Array, jax.Array]:
        with jax.named_scope("attention"):
            x = constrain(x, *STREAM)
            normed = constrain(transformer.rms_norm(x, weights["attention_norm"]), *STREAM)
            x = x + constrain(transformer.attention(weights, normed, angles, attend), *STREAM)
        with jax.named_scope("experts"):
            normed = constrain(transformer.rms_norm(x, weights["ffn_norm"]), *STREAM)
            out, balance = MIXTURES[moe](config, weights, normed)
            return constrain(x + constrain(out, *STREAM), *STREAM), balance

    def loss(params: Any, batch: Any) -> jax.Array:
        with jax.named_scope("embed"):
            x = training.look_up(params["embedding"], batch["tokens"]).astype(jnp.bfloat16)
            x = constrain(x, "batch", "length", "embed")
            angles = transformer.rotary_angles(jnp.arange(sequence), config.head_size, config.theta)
        x, balance = training.repeat(layer, x, params["layers"], angles, checkpoint=checkpoint)
        with jax.named_scope("unembed"):
            x = transformer.rms_norm(x, params["final_norm"])
            logits = project("bsd,dv->bsv", x, params["unembedding"])
            logits = constrain(logits, "batch", "length", "vocab")
        with jax.named_scope("loss"):
            penalty = config.balance_coefficient * jnp.mean(balance)
            return training.cross_entropy(logits, batch["targets"]) + penalty

    data = {"tokens": tokens, "targets": tokens}
    return training.adamw_step(loss, weights(config, scan=scan), data, microbatches=microbatches)


def weights(config: Mixtral, *, scan: bool = True) -> dict[str, Any]:
    """The abstract parameters."""
    width, hidden = config.width, config.hidden
    layer = {
        "attention_norm": abstract(width),
        **transformer.attention_weights(
            width, config.heads, config.kv_heads, config.head_size, jnp.float32
        ),
        "ffn_norm": abstract(width),
        "router": abstract(width, config.experts),
        "gate": abstract(config.experts, width, hidden),
        "up": abstract(config.experts, width, hidden),
        "down": abstract(config.experts, hidden, width),
    }
    return {
        "embedding": abstract(config.vocabulary, width),
        "layers": training.stacked(layer, config.layers, scan=scan),
        "final_norm": abstract(width),
        "unembedding": abstract(width, config.vocabulary),
    }


def route(config: Mixtral, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The combine tensor `[b, g, t, e, c]` and the load-balance loss of `logits: [b, g, t, e]`.

    An entry of the combine tensor is the weight with which a token uses a slot of an expert, or 0.
    The weights of one token's experts are its probabilities, normalised over those chosen.
    """
    probabilities = jax.nn.softmax(logits, axis=-1)
    left = probabilities
    taken = jnp.zeros((*logits.shape[:2], 1, config.experts), jnp.float32)
    chosen_total = jnp.zeros(logits.shape[:3], jnp.float32)
    combine = jnp.zeros((*logits.shape, config.capacity), jnp.float32)
    balance = jnp.zeros((), jnp.float32)
    for choice in range(config.active):
        mask = jax.nn.one_hot(jnp.argmax(left, axis=-1), config.experts, dtype=jnp.float32)
        if choice == 0:
            share = jnp.mean(mask, axis=(0, 1, 2))
            mean = jnp.mean(probabilities, axis=(0, 1, 2))
            balance = config.experts * jnp.sum(share * mean)
        slot = jnp.sum((jnp.cumsum(mask, axis=2) - 1 + taken) * mask, axis=-1)
        weight = jnp.sum(probabilities * mask, axis=-1)
        # A slot at or over the capacity has no one in its one-hot: the token is dropped.
        slots = jax.nn.one_hot(slot.astype(jnp.int32), config.capacity, dtype=jnp.float32)
        combine = combine + (weight[..., None] * mask)[..., None] * slots[..., None, :]
        taken = taken + jnp.sum(mask, axis=2, keepdims=True)
        chosen_total = chosen_total + weight
        left = left * (1 - mask)
    return combine / chosen_total[..., None, None], balance


def experts(config: Mixtral, weights: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mixture-of-experts layer on `x: [b, s, d]`, and its load-balance loss."""
    grouped = x.reshape(x.shape[0], -1, config.group, x.shape[2])
    with jax.named_scope("router"):
        wide = grouped.astype(jnp.float32)
        logits = project("bgtd,de->bgte", wide, weights["router"])
        combine, balance = route(config, logits)
        combine = constrain(combine, "batch", "group", "token", "choice", "slot")
        dispatch = (combine > 0).astype(x.dtype)
        combine = combine.astype(x.dtype)
    inputs = jnp.einsum("bgtec,bgtd->ebgcd", dispatch, grouped)
    inputs = constrain(inputs, "expert", "batch", "group", "slot", "embed")
    gate = jax.nn.silu(project("ebgcd,edf->ebgcf", inputs, weights["gate"]))
    up = project("ebgcd,edf->ebgcf", inputs, weights["up"])
    hidden = constrain(gate * up, "expert", "batch", "group", "slot", "mlp")
    outputs = project("ebgcf,efd->ebgcd", hidden, weights["down"])
    outputs = constrain(outputs, "expert", "batch", "group", "slot", "embed")
    return jnp.einsum("bgtec,ebgcd->bgtd", combine, outputs).reshape(x.shape), balance


def dropless(config: Mixtral, weights: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same on `x: [b, s, d]` by ragged products, in which no token is dropped."""
    tokens = x.reshape(-1, x.shape[-1])
    with jax.named_scope("router"):
        logits = project("td,de->te", tokens.astype(jnp.float32), weights["router"])
        probabilities = jax.nn.softmax(logits, axis=-1)
        shares, chosen = lax.top_k(probabilities, config.active)
        shares = shares / jnp.sum(shares, axis=-1, keepdims=True)
        picked = jax.nn.one_hot(chosen, config.experts, dtype=jnp.float32)
        first = jnp.mean(picked[:, 0], axis=0)
        balance = config.experts * jnp.sum(first * jnp.mean(probabilities, axis=0))
        sizes = jnp.sum(picked, axis=(0, 1)).astype(jnp.int32)
        order = jnp.argsort(chosen.reshape(-1))
        places = jnp.argsort(order)
    rows = training.look_up(tokens, order // config.active)
    gate = jax.nn.silu(lax.ragged_dot(rows, weights["gate"].astype(x.dtype), sizes))
    up = lax.ragged_dot(rows, weights["up"].astype(x.dtype), sizes)
    outputs = lax.ragged_dot(gate * up, weights["down"].astype(x.dtype), sizes)
    back = training.look_up(outputs, places).reshape(*chosen.shape, -1)
    mixed = jnp.einsum("tkd,tk->td", back, shares.astype(x.dtype))
    return mixed.reshape(x.shape), balance


MIXTURES = {"capacity": experts, "dropless": dropless}
"""Mixture-of-experts layers by the word for them."""


def build(name: str, **sizes: Any) -> Step:
    """The built-in `name`, at its real size where `sizes` say nothing else."""
    return mixtral(**{"scan": not name.endswith("-unrolled"), **sizes})


def tiny(name: str, **sizes: Any) -> Step:
    """The built-in `name`, small where `sizes` say nothing else."""
    config = Mixtral(
        layers=2, width=64, heads=8, kv_heads=4, hidden=64, vocabulary=128, experts=8, group=16
    )
    usual = {"batch": 8, "sequence": 32, "scan": not name.endswith("-unrolled")}
    return mixtral(config, **{**usual, **sizes})


def sample(args: Any, seed: int) -> Any:
    """Random arguments: tokens below the vocabulary."""
    vocabulary = args[0]["embedding"].shape[0]
    return training.sample(args, seed, {"tokens": vocabulary, "targets": vocabulary})
