"""State-space mixers: the chunked form against the recurrence, and decoders with a pattern."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.models import training
from autoshard.models.decoder import decoder
from autoshard.models.decoder_sizes import Decoder, sizes_of
from autoshard.models.state_space import TAPS, convolved, state_space

HYBRID = Decoder(
    layers=5, pattern="MEM*E", width=32, heads=4, kv_heads=2, hidden=32, vocabulary=64,
    gated=False, experts=8, active=2, expert_hidden=16, expert_latent=8, shared_hidden=32,
    state_heads=4, state_head_size=8, state_size=16, state_groups=2, further=2,
)  # fmt: skip


@pytest.mark.parametrize("chunk", [4, 8, 32])
def test_chunks_are_the_recurrence(chunk: int):
    random = np.random.default_rng(0)
    b, s, g, r, p, n = 2, 32, 2, 3, 4, 5
    x, given, read = (
        random.standard_normal(shape) for shape in ((b, s, g, r, p), (b, s, g, n), (b, s, g, n))
    )
    steps = np.log1p(np.exp(random.standard_normal((b, s, g, r))))
    decay = -np.exp(random.standard_normal((g, r)))
    state, wanted = np.zeros((b, g, r, p, n)), []
    for t in range(s):
        state = state * np.exp(decay * steps[:, t])[..., None, None]
        state += np.einsum("bgrp,bgn,bgr->bgrpn", x[:, t], given[:, t], steps[:, t])
        wanted.append(np.einsum("bgrpn,bgn->bgrp", state, read[:, t]))
    found = state_space(*map(jnp.float32, (x, steps, decay, given, read)), chunk=chunk)
    np.testing.assert_allclose(found, np.stack(wanted, axis=1), atol=2e-5)
    with pytest.raises(ValueError, match="a sequence of 32 does not divide into chunks of 12"):
        state_space(*map(jnp.float32, (x, steps, decay, given, read)), chunk=12)


def test_a_convolution_looks_back_alone():
    x = np.random.default_rng(1).standard_normal((1, 6, 3))
    taps = np.random.default_rng(2).standard_normal((TAPS, 3))
    found = convolved(jnp.float32(x), jnp.float32(taps))
    last = sum(taps[k] * x[0, 5 - k] for k in range(TAPS))
    np.testing.assert_allclose(found[0, 5], last / (1 + np.exp(-last)), rtol=1e-5)
    np.testing.assert_allclose(found[0, 0], jax.nn.silu(taps[0] * x[0, 0]), rtol=1e-5)


def test_a_pattern_has_layers_of_one_thing_each():
    assert HYBRID.kinds == {"state_layers": 2, "attention_layers": 1, "layers": 2}
    assert (HYBRID.attention_count, HYBRID.expert_width) == (1, 8)
    assert replace(HYBRID, layers=2).kinds == {"state_layers": 1, "layers": 1}
    step = decoder(HYBRID, 2, 32)
    assert set(step.args[0]["attention_layers"]) & {"wq", "ffn_norm"} == {"wq"}
    value = jax.jit(step.fn)(*training.sample(step.args, 0, {"tokens": 64, "targets": 64}))[0]
    alone = decoder(replace(HYBRID, further=0), 2, 32)
    less = jax.jit(alone.fn)(*training.sample(alone.args, 0, {"tokens": 64, "targets": 64}))[0]
    assert float(less) == pytest.approx(np.log(64), rel=0.1)
    assert float(value) == pytest.approx(1.3 * np.log(64), rel=0.1)


def test_patterns_that_cannot_be():
    with pytest.raises(ValueError, match="layers beyond the pattern: the excess is 1"):
        replace(HYBRID, layers=6)
    with pytest.raises(ValueError, match="none of M, \\*, E: their count is 1"):
        replace(HYBRID, pattern="MEM-E")
    with pytest.raises(ValueError, match="state_groups does not divide state_heads: the rest is 1"):
        replace(HYBRID, state_groups=3)
    assert sizes_of("nemotron-3-nano").kinds["state_layers"] == 23
