"""The state-space mixer of Mamba-2: what a layer has in place of attention.

A head keeps a state of `p x n` numbers, which decays and takes in one product per token
(https://arxiv.org/abs/2405.21060):

    S_t = exp(a dt_t) S_(t-1) + dt_t x_t B_t^T          y_t = S_t C_t + D x_t

It is computed chunk by chunk of `l` tokens, as products: within a chunk every output is a masked
sum over its tokens, as of attention; between chunks states are carried by one product with the
decays of all pairs of chunks (listing 1 of the paper). Sizes below: `b` sequences, `c` chunks of
`l` (or `m`) tokens, `g` groups that share `B` and `C`, `r` heads of a group, `p` width of a head,
`n` of its state.

Before that, `x`, `B` and `C` go through a causal convolution of `TAPS` tokens for each channel;
after it, outputs are gated, normed within a group, and projected. Kernels of Triton (github.com/
state-spaces/mamba, mamba_chunk_scan_combined) do the same without writing out masked sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from autoshard.models import training
from autoshard.models.annotate import constrain
from autoshard.models.decoder_sizes import Decoder
from autoshard.models.training import abstract

TAPS = 4
"""Tokens of the convolution (github.com/NVIDIA/Megatron-LM, ssm/mamba_mixer.py, d_conv)."""
CHUNK = 128
"""Tokens of a chunk (the same file, chunk_size)."""
STATE_AXES = {
    "state_norm": ("norm",),
    "state_gate": ("embed", "state_groups", "state_heads", "head_size"),
    "state_values": ("embed", "state_groups", "state_heads", "head_size"),
    "state_in": ("embed", "state_groups", "state_size"),
    "state_out": ("embed", "state_groups", "state_size"),
    "state_steps": ("embed", "state_groups", "state_heads"),
    "values_taps": ("tap", "state_groups", "state_heads", "head_size"),
    "in_taps": ("tap", "state_groups", "state_size"),
    "out_taps": ("tap", "state_groups", "state_size"),
    "decay": ("state_groups", "state_heads"),
    "steps_bias": ("state_groups", "state_heads"),
    "skip": ("state_groups", "state_heads"),
    "gate_norm": ("state_groups", "state_heads", "head_size"),
    "state_down": ("state_groups", "state_heads", "head_size", "embed"),
}
"""Logical names of a mixer's weights."""
Project = Callable[..., jax.Array]


def state_weights(config: Decoder) -> dict[str, Any]:
    """The abstract weights of one mixer and its norm, in float32."""
    width, groups, size = config.width, config.state_groups, config.state_size
    heads = (groups, config.state_heads // groups)
    inner = (*heads, config.state_head_size)
    return {
        "state_norm": abstract(width),
        "state_gate": abstract(width, *inner),
        "state_values": abstract(width, *inner),
        "state_in": abstract(width, groups, size),
        "state_out": abstract(width, groups, size),
        "state_steps": abstract(width, *heads),
        "values_taps": abstract(TAPS, *inner),
        "in_taps": abstract(TAPS, groups, size),
        "out_taps": abstract(TAPS, groups, size),
        "decay": abstract(*heads),
        "steps_bias": abstract(*heads),
        "skip": abstract(*heads),
        "gate_norm": abstract(*inner),
        "state_down": abstract(*inner, width),
    }


def mixed(project: Project, weights: Any, x: jax.Array) -> jax.Array:
    """The mixer on normed `x: [b, s, d]`; `project` makes its products with large weights.

    Raises:
      ValueError: chunks do not divide the sequence.
    """
    groups = ("batch", "length", "state_groups")
    gate = project("bsd,dgrp->bsgrp", x, weights["state_gate"], "state_proj")
    values = project("bsd,dgrp->bsgrp", x, weights["state_values"], "state_proj")
    inputs = project("bsd,dgn->bsgn", x, weights["state_in"], "state_proj")
    outputs = project("bsd,dgn->bsgn", x, weights["state_out"], "state_proj")
    steps = training.project("bsd,dgr->bsgr", x, weights["state_steps"])
    steps = jax.nn.softplus(steps.astype(jnp.float32) + weights["steps_bias"])
    heads = (*groups, "state_heads", "head_size")
    values = constrain(convolved(values, weights["values_taps"]), *heads)
    inputs = constrain(convolved(inputs, weights["in_taps"]), *groups, "state_size")
    outputs = constrain(convolved(outputs, weights["out_taps"]), *groups, "state_size")
    y = state_space(values, steps, -jnp.exp(weights["decay"]), inputs, outputs)
    y = y + values * weights["skip"].astype(x.dtype)[..., None]
    y = checkpoint_name(y, "context")
    gated = (y * jax.nn.silu(gate)).astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(gated), axis=(-2, -1), keepdims=True)
    normed = gated * jax.lax.rsqrt(mean_square + 1e-5) * weights["gate_norm"]
    normed = constrain(normed.astype(x.dtype), *heads)
    return project("bsgrp,grpd->bsd", normed, weights["state_down"], "out_proj")


def convolved(x: jax.Array, taps: jax.Array) -> jax.Array:
    """`silu(sum_k taps[k] x[t - k])` of `x: [b, s, ...]`, zero before its first token."""
    length = x.shape[1]
    ahead = [(0, 0)] * x.ndim
    ahead[1] = (TAPS - 1, 0)
    padded = jnp.pad(x, ahead)
    parts = [padded[:, TAPS - 1 - k : TAPS - 1 - k + length] for k in range(TAPS)]
    weights = taps.astype(x.dtype)
    return jax.nn.silu(sum(part * weights[k] for k, part in enumerate(parts)))


def state_space(
    values: jax.Array,
    steps: jax.Array,
    decay: jax.Array,
    inputs: jax.Array,
    outputs: jax.Array,
    chunk: int = CHUNK,
) -> jax.Array:
    """Outputs `[b, s, g, r, p]` of the recurrence, see the module.

    Args:
      values: `x: [b, s, g, r, p]`.
      steps: `dt: [b, s, g, r]`, in float32.
      decay: `a: [g, r]`, negative.
      inputs, outputs: `B` and `C`, `[b, s, g, n]`.
      chunk: tokens of a chunk, at most.

    Raises:
      ValueError: chunks do not divide the sequence.
    """
    length, dtype = values.shape[1], values.dtype
    chunk = min(chunk, length)
    if length % chunk:
        raise ValueError(f"a sequence of {length} does not divide into chunks of {chunk} tokens")

    def chunked(x: jax.Array) -> jax.Array:
        return x.reshape(x.shape[0], length // chunk, chunk, *x.shape[2:])

    given, read = chunked(inputs), chunked(outputs)
    taken = chunked(values * steps.astype(dtype)[..., None])
    summed = jnp.cumsum(chunked(steps * decay), axis=2)
    logs = jnp.moveaxis(summed, 2, -1)
    within = _decays(logs).astype(dtype)
    scores = jnp.einsum("bclgn,bcmgn->bcglm", read, given)
    near = jnp.einsum("bcgrlm,bcmgrp->bclgrp", scores[:, :, :, None] * within, taken)
    left = jnp.exp(summed[:, :, -1:] - summed).astype(dtype)
    states = jnp.einsum("bcmgn,bcmgrp->bcgrpn", given, taken * left[..., None])
    whole = jnp.pad(jnp.moveaxis(summed[:, :, -1], 1, -1), ((0, 0), (0, 0), (0, 0), (1, 0)))
    carried = _decays(jnp.cumsum(whole, axis=-1))[..., :-1, 1:].astype(dtype)
    before = jnp.einsum("bgrzc,bcgrpn->bzgrpn", carried, states)
    far = jnp.einsum("bclgn,bcgrpn->bclgrp", read, before)
    out = near + far * jnp.exp(summed).astype(dtype)[..., None]
    return out.reshape(values.shape)


def _decays(sums: jax.Array) -> jax.Array:
    """`exp(sums[i] - sums[j])` of `sums: [..., i]` where `j <= i`, else 0: `[..., i, j]`."""
    between = sums[..., :, None] - sums[..., None, :]
    size = sums.shape[-1]
    lower = jnp.arange(size)[:, None] >= jnp.arange(size)[None, :]
    return jnp.where(lower, jnp.exp(jnp.where(lower, between, 0.0)), 0.0)
