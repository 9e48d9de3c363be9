"""Steps of serving engines: what their kernels compute, and how they may be cut."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard
from autoshard.lower.verify import verify
from autoshard.models.annotate import Rules, active, shardings
from autoshard.models.decoder_sizes import Decoder
from autoshard.models.engine import AXES, Precision, engine_step, kernels
from autoshard.program.trace import trace

WIDE = Precision()
DENSE = Decoder(layers=2, width=32, heads=8, kv_heads=4, hidden=64, vocabulary=64)
MIXED = Decoder(
    layers=2, width=32, heads=8, kv_heads=8, hidden=64, vocabulary=64, experts=8, active=2,
    expert_hidden=16, shared_hidden=32, dense_layers=1, latent=16, query_latent=24, head_size=12,
    value_size=8, shared_size=4,
)  # fmt: skip


def sample(shapes: Any, seed: int = 0) -> Any:
    """Random arrays of these shapes; whole numbers are below 8."""
    random = np.random.default_rng(seed)

    def one(leaf: Any) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jnp.asarray(random.integers(0, 8, leaf.shape), leaf.dtype)
        return jnp.asarray(random.normal(size=leaf.shape) / math.sqrt(8), leaf.dtype)

    return jax.tree.map(one, shapes)


@pytest.mark.parametrize("config", [DENSE, MIXED], ids=["dense", "experts"])
@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_a_plan_of_tensor_and_expert_parallelism_computes_what_the_step_does(
    config: Decoder, mode: Any
):
    step = engine_step(config, mode, batch=4, length=16, precision=WIDE)
    ranks = ("expert", "tensor")
    names = dict.fromkeys(("heads", "mlp", "vocab"), ranks) | {
        "kv_heads": ranks[1:],
        "expert": ranks[:1],
        "expert_mlp": ranks[1:],
    }
    rules = Rules({"expert": 2, "tensor": 4}, names, names)
    mesh = rules.make_mesh()

    def run(*args: Any) -> Any:
        with active(rules, mesh):
            return step.fn(*args)

    jitted = jax.jit(run, in_shardings=shardings(step.args, AXES, rules, mesh))
    program = trace(jitted, *step.args)
    plan = autoshard.search(program, "h100-8", mesh=dict(rules.mesh), baselines=False)
    assert any(move.kind == "all_reduce" for move in plan.moves)
    judged = verify(plan, jitted, *step.args, concrete=sample(step.args))
    assert judged.differences == (), judged


def test_a_prompt_of_one_token_less_and_a_step_agree_with_the_whole_prompt():
    """The last logits of a prompt are those of a decode step after all but its last token."""
    prompts = {"prompts": jnp.asarray(np.random.default_rng(1).integers(0, 64, (2, 8)))}
    whole = engine_step(DENSE, "prefill", batch=2, length=8, precision=WIDE)
    params = sample(whole.args[0])
    expected, cache = whole.fn(params, prompts)
    # rotations are by one angle, so that the cache of all tokens is that of the prompt
    held = [
        {name: one.reshape(2, 8, 4, 4).swapaxes(1, 2) for name, one in
         zip(("keys", "values"), layer, strict=True)}
        for layer in cache
    ]  # fmt: skip
    step = engine_step(DENSE, "decode", batch=2, length=8, precision=WIDE)
    found, _ = step.fn(params, {"tokens": prompts["prompts"][:, -1]}, held)
    np.testing.assert_allclose(
        np.asarray(found, np.float32), np.asarray(expected, np.float32), atol=5e-2
    )


def test_experts_compute_what_each_token_asks_of_its_own():
    random = np.random.default_rng(2)
    tokens, experts, active, width, hidden = 5, 4, 2, 3, 6
    x = jnp.asarray(random.normal(size=(tokens, width)), jnp.bfloat16)
    up = jnp.asarray(random.normal(size=(experts, width, 1, hidden)), jnp.bfloat16)
    down = jnp.asarray(random.normal(size=(experts, hidden, width)), jnp.bfloat16)
    shares = jnp.asarray(random.uniform(size=(tokens, active)), jnp.float32)
    numbers = jnp.arange(experts)
    inner = kernels.experts_in(active, experts, "bfloat16")(x, up, numbers)[:, :, 0]
    found = kernels.experts_out(active, experts)(inner, down, numbers, shares)
    expected = np.zeros((tokens, width))
    for token in range(tokens):
        for use in range(active):
            expert = (token * active + use) % experts
            one = np.asarray(x[token] @ up[expert, :, 0] @ down[expert], np.float32)
            expected[token] += float(shares[token, use]) * one
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, rtol=0.1, atol=0.1)


def test_experts_that_are_read_are_those_that_random_tokens_hit():
    random = np.random.default_rng(3)
    for experts, used, tokens in ((8, 2, 3), (32, 4, 8), (16, 1, 40)):
        hits = []
        for _ in range(2000):
            picked = random.random((tokens, experts)).argsort(axis=1)[:, :used]
            hits.append(len(np.unique(picked)))
        assert kernels.hit_experts(experts, used, tokens) == pytest.approx(np.mean(hits), rel=0.02)


def test_pairs_that_a_mask_leaves_are_counted():
    for length in (1, 5, 9):
        for window in (0, 1, 4, 20):
            behind = np.arange(length)[:, None] - np.arange(length)
            seen = (behind >= 0) & ((behind < window) if window else True)
            assert kernels.seen_pairs(length, window) == seen.sum()


def test_models_without_such_a_step_are_refused():
    with pytest.raises(ValueError, match="no step of an engine is known for a model with pattern"):
        engine_step("nemotron-3-nano", "decode", batch=1, length=8)
