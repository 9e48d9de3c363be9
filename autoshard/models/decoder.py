"""A decoder-only transformer of any published dimensions: dense, or with experts; AdamW steps.

    step = decoder(Decoder(layers=32, width=4096, heads=32, kv_heads=8, hidden=14336), batch=64)
    step = decoder("llama3.1-70b", batch=512, sequence=8192, remat="full", attention="flash")

`autoshard.models.decoder_sizes` has the dimensions of published models; what it has not, a
`Decoder` says. Layers are scanned over.

    attention   "plain": scores written out (`attention.plain`); "flash": the kernel of
                `autoshard.models.splash`, forward and backward, in
                blocks of up to 1,024, with masked blocks left out; "cudnn": cuDNN's kernel, for
                NVIDIA GPUs
    remat       "none": all is kept that the backward pass reads; "full": of a layer its input
                alone; or names among `NAMES`, which are kept beside it
    offload     names of those, or `decoder_layer_input`, which wait in the memory of the host
    products    "bfloat16", or "float8_e4m3fn": operands of the layers' products with weights are
                cast by a fixed scale, gradients to float8_e5m2 (https://arxiv.org/abs/2209.05433),
                or "float4_e2m1fn" or "int8", where gradients are cast likewise; attention and the
                output layer stay

Experts are chosen by force in equal numbers, as benchmarks do, and no token is dropped; tokens are
brought to experts and back by gathers of rows, group by group. Layers of one kind run one after
another: first those without experts, then those with a window, then the rest; of a pattern first
state-space mixers, then attention, then experts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from autoshard.models import training, transformer
from autoshard.models.annotate import LogicalAxes, constrain
from autoshard.models.decoder_layer import NAMES, Attention, Layer, layer_weights
from autoshard.models.decoder_sizes import Decoder, sizes_of
from autoshard.models.splash import MOST
from autoshard.models.state_space import STATE_AXES
from autoshard.models.training import Step, abstract

__all__ = [
    "LAYER_INPUT",
    "LOGICAL_AXES",
    "NAMES",
    "Decoder",
    "decoder",
    "parameter_count",
    "weights",
]

LAYER_INPUT = "decoder_layer_input"
"""What `offload` calls what a layer is given, as MaxText does."""
LOGICAL_AXES = LogicalAxes(
    parameters={
        **transformer.DECODER_AXES,
        "query_down": ("embed", "latent"),
        "query_up": ("latent", "heads", "head_size"),
        "latent_down": ("embed", "latent"),
        "key_shared": ("embed", "head_size"),
        "key_up": ("latent", "heads", "head_size"),
        "value_up": ("latent", "heads", "head_size"),
        "router": ("embed", "choice"),
        "expert_gate": ("expert", "embed", "mlp"),
        "expert_up": ("expert", "embed", "mlp"),
        "expert_down": ("expert", "mlp", "embed"),
        "shared_gate": ("embed", "mlp"),
        "shared_up": ("embed", "mlp"),
        "shared_down": ("mlp", "embed"),
        "expert_narrow": ("embed", "latent"),
        "expert_widen": ("latent", "embed"),
        "further_norm": ("norm",),
        "further_join": ("joined", "embed"),
        **STATE_AXES,
        **transformer.SWIGLU_AXES,
    },
    data=transformer.TOKEN_AXES,
)
"""Logical names of a step's arguments, see `autoshard.models.annotate`."""
FURTHER_WEIGHT = 0.3
"""Of the loss of further tokens (https://arxiv.org/abs/2412.19437, section 4.2)."""


def decoder(
    config: Decoder | str,
    batch: int = 64,
    sequence: int = 4096,
    *,
    layers: int | None = None,
    remat: str | tuple[str, ...] = "full",
    offload: tuple[str, ...] = (),
    attention: Attention = "plain",
    products: str = "bfloat16",
    microbatches: int | None = None,
    moments: str = "float32",
    block: int = MOST,
) -> Step:
    """The AdamW step of a decoder on `[batch, sequence]` tokens; see the module docstring.

    Args:
      config: dimensions, or the name of a published model.
      batch, sequence: of the tokens.
      layers: in place of the config's.
      remat, offload, attention, products: see the module docstring.
      microbatches: over which gradients are accumulated.
      moments: dtype of AdamW's first moment.
      block: tokens of a block of "flash" attention, at most.

    Raises:
      ValueError: there is no such model, or a size does not divide; the message names it.
    """
    config = sizes_of(config) if isinstance(config, str) else config
    config = config if layers is None else replace(config, layers=layers)
    if config.experts and sequence % config.group:
        raise ValueError(
            f"a sequence of {sequence} does not divide into groups of {config.group} tokens; "
            "take a multiple of it"
        )
    keep = _policy(remat, offload)
    loss = _Loss(config, Layer(config, attention, products, block), keep, sequence)
    tokens = abstract(batch, sequence, dtype=jnp.int32)
    data = {"tokens": tokens, "targets": tokens}
    return training.adamw_step(
        loss, weights(config), data, microbatches=microbatches, moments=moments
    )


@dataclass(frozen=True, slots=True)
class _Loss:
    """The loss of weights on tokens."""

    config: Decoder
    layer: Layer
    keep: Callable[[Any], Any]
    sequence: int

    def __call__(self, params: Any, data: Any) -> jax.Array:
        config = self.config
        x = self.embed(params, data["tokens"])
        with jax.named_scope("embed"):
            positions = jnp.arange(self.sequence)
            angles = transformer.rotary_angles(positions, config.head_size, config.theta)
        for kind in config.kinds:
            x = self.through(x, kind, params[kind], angles)
        total, targets = self.judged(params, x, data["targets"]), data["targets"]
        for _ in range(config.further):
            with jax.named_scope("further"):
                x = self.joined(params, x, targets)
                targets = jnp.roll(targets, -1, axis=1)
                for kind in config.further_kinds:
                    x = self.through(x, kind, params["further"][kind], angles)
                loss = self.judged(params, x, targets)
                total = total + FURTHER_WEIGHT / config.further * loss
        return total

    def embed(self, params: Any, tokens: jax.Array) -> jax.Array:
        with jax.named_scope("embed"):
            x = training.look_up(params["embedding"], tokens).astype(jnp.bfloat16)
            return constrain(x, "batch", "length", "embed")

    def through(self, x: jax.Array, kind: str, stacked: Any, angles: jax.Array) -> jax.Array:
        """Through all layers of a kind."""
        layer = self.keep(functools.partial(self.layer, kind))

        def step(x: jax.Array, one: Any) -> tuple[jax.Array, None]:
            return layer(x, one, angles), None

        with jax.named_scope(kind):
            return lax.scan(step, x, stacked)[0]

    def judged(self, params: Any, x: jax.Array, targets: jax.Array) -> jax.Array:
        with jax.named_scope("unembed"):
            x = transformer.rms_norm(x, params["final_norm"])
            table = params["embedding"].T if self.config.tied else params["unembedding"]
            logits = training.project("bsd,dv->bsv", x, table)
            logits = constrain(logits, "batch", "length", "vocab")
        with jax.named_scope("loss"):
            return training.cross_entropy(logits, targets)

    def joined(self, params: Any, x: jax.Array, tokens: jax.Array) -> jax.Array:
        """What is known of each place and the token after it, as wide as either."""
        more = params["further"]
        both = [transformer.rms_norm(x, more["further_norm"]), self.embed(params, tokens)]
        out = training.project("bse,ed->bsd", jnp.concatenate(both, -1), more["further_join"])
        return constrain(out, "batch", "length", "embed")


def weights(config: Decoder) -> dict[str, Any]:
    """The abstract parameters, in float32; layers are stacked by kind."""
    params: dict[str, Any] = {"embedding": abstract(config.vocabulary, config.width)}
    if not config.tied:
        params["unembedding"] = abstract(config.width, config.vocabulary)
    params["final_norm"] = abstract(config.width)
    for kind, count in config.kinds.items():
        params[kind] = training.stacked(layer_weights(config, kind), count, scan=True)
    if config.further:
        params["further"] = {
            "further_norm": abstract(config.width),
            "further_join": abstract(2 * config.width, config.width),
            **{
                kind: training.stacked(layer_weights(config, kind), 1, scan=True)
                for kind in config.further_kinds
            },
        }
    return params


def _policy(remat: str | tuple[str, ...], offload: tuple[str, ...]) -> Callable[[Any], Any]:
    """What a layer becomes that keeps so much, and has so much of it wait on the host."""
    names = () if remat in ("full", "none") else (remat,) if isinstance(remat, str) else remat
    strange = [one for one in names if one not in NAMES]
    strange += [one for one in offload if one not in (*NAMES, LAYER_INPUT)]
    if strange:
        raise ValueError(
            f"a layer computes nothing called {', '.join(strange)}; remat is 'none', 'full', or "
            f"names among {', '.join(NAMES)}, and offload has those and {LAYER_INPUT}"
        )
    if remat == "none" and offload:
        raise ValueError(
            f"with remat 'none' nothing says what of {', '.join(offload)} is read later: give the "
            "names that are kept"
        )
    if remat == "none":
        return lambda layer: layer
    policy = jax.checkpoint_policies.save_only_these_names(*names)
    if offload:
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[name for name in names if name not in offload],
            names_which_can_be_offloaded=list(offload),
            offload_src="device",
            offload_dst="pinned_host",
        )

    def kept(layer: Any) -> Any:
        def named(x: jax.Array, *rest: Any) -> jax.Array:
            return layer(checkpoint_name(x, LAYER_INPUT), *rest)

        layer_of = named if LAYER_INPUT in offload else layer
        return jax.checkpoint(layer_of, policy=policy, prevent_cse=False)

    return kept


def parameter_count(config: Decoder) -> int:
    """Scalars among the weights."""
    return training.parameter_count(weights(config))
