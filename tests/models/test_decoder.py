"""Decoders of any dimensions: sizes as published, and what a step computes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard import models
from autoshard.models import training
from autoshard.models.decoder import LAYER_INPUT, Decoder, decoder, parameter_count
from autoshard.models.decoder_layer import balanced
from autoshard.models.decoder_sizes import published, sizes_of
from autoshard.program.trace import trace

TINY = Decoder(layers=2, width=64, heads=8, kv_heads=4, hidden=128, vocabulary=128)
COUNTS = {
    "llama2-7b": 6.74e9,
    "llama3.1-8b": 8.03e9,
    "llama3.1-405b": 405.9e9,
    "mpt-7b": 6.65e9,
    "gpt3-175b": 175e9,
    "mixtral-8x7b": 46.7e9,
    "qwen3-30b-a3b": 30.5e9,
    "qwen3-235b-a22b": 235e9,
    "gpt-oss-120b": 117e9,
    "deepseek-v3": 671e9,
    "gemma3-12b": 11.77e9,
    "nemotron-3-nano": 31.6e9,
    "llama1-7b": 6.7e9,
    "llama1-13b": 1.3e10,
    "llama1-33b": 3.25e10,
    "llama1-65b": 6.52e10,
    "codellama-34b": 3.37e10,
    "tinyllama-1.1b": 1.1e9,
    "llama3.2-1b": 1.24e9,
    "llama3.2-3b": 3.21e9,
    "gemma-2b": 2.51e9,
    "gemma-7b": 8.54e9,
    "gemma2-2b": 2.61e9,
    "gemma2-9b": 9.24e9,
    "gemma2-27b": 2.72e10,
    "gemma3-1b": 1e9,
    "gemma3-4b": 3.88e9,
    "gemma3-27b": 2.7e10,
    "qwen2.5-0.5b": 4.94e8,
    "qwen2.5-1.5b": 1.54e9,
    "qwen2.5-3b": 3.09e9,
    "qwen2.5-7b": 7.62e9,
    "qwen2.5-14b": 1.477e10,
    "qwen2.5-32b": 3.276e10,
    "qwen2.5-72b": 7.271e10,
    "qwen3-0.6b": 5.96e8,
    "qwen3-1.7b": 1.72e9,
    "qwen3-4b": 4.02e9,
    "qwen3-8b": 8.19e9,
    "qwen3-14b": 1.477e10,
    "qwen3-32b": 3.276e10,
    "qwen3-coder-480b-a35b": 4.8e11,
    "qwen2-57b-a14b": 5.74e10,
    "mistral-nemo-12b": 1.225e10,
    "mistral-small-24b": 2.357e10,
    "mistral-large-123b": 1.226e11,
    "gpt-oss-20b": 2.09e10,
    "deepseek-v2": 2.36e11,
    "nemotron-4-15b": 1.56e10,
    "nemotron-4-340b": 3.41e11,
    "megatron-18b": 1.84e10,
    "megatron-39b": 3.91e10,
    "megatron-76b": 7.61e10,
    "megatron-145b": 1.456e11,
    "megatron-310b": 3.101e11,
    "phi3-mini": 3.82e9,
    "phi4-14b": 1.466e10,
    "olmo2-7b": 7.3e9,
    "olmo2-13b": 1.37e10,
    "olmo2-32b": 3.22e10,
    "yi-34b": 3.44e10,
    "grok-1": 3.14e11,
    "dbrx": 1.316e11,
    "glm-4.5": 3.53e11,
    "glm-4.5-air": 1.069e11,
    "olmoe-7b": 6.92e9,
    "phi3.5-moe": 4.19e10,
}
"""Parameters as the publishers of the models count them."""
WITH_POSITIONS = {
    "gpt3-125m": 1.25e8,
    "gpt3-350m": 3.55e8,
    "gpt3-760m": 7.6e8,
    "gpt3-1.3b": 1.3e9,
    "gpt3-2.7b": 2.7e9,
    "gpt3-6.7b": 6.7e9,
    "gpt3-13b": 1.3e10,
    "megatron-1.7b": 1.7e9,
    "megatron-3.6b": 3.6e9,
    "megatron-7.5b": 7.5e9,
}
"""Likewise, with embeddings of positions, which no decoder of these has, and rounded."""


def loss_of(step: training.Step, seed: int = 0) -> float:
    bounds = {"tokens": 128, "targets": 128}
    return float(jax.jit(step.fn)(*training.sample(step.args, seed, bounds))[0])


def test_published_dimensions_have_the_published_parameters():
    for name, count in COUNTS.items():
        assert parameter_count(sizes_of(name)) == pytest.approx(count, rel=0.006), name
    for name, count in WITH_POSITIONS.items():
        assert parameter_count(sizes_of(name)) == pytest.approx(count, rel=0.035), name
    assert all(one.source for one in published().values())


def test_a_dense_decoder_computes_what_llama_does():
    theirs = models.tiny("llama3-8b")
    width, heads, _ = theirs.args[0]["layers"]["wq"].shape[1:]
    config = Decoder(
        layers=theirs.args[0]["layers"]["wq"].shape[0],
        width=width,
        heads=heads,
        kv_heads=theirs.args[0]["layers"]["wk"].shape[2],
        hidden=theirs.args[0]["layers"]["gate"].shape[2],
        vocabulary=theirs.args[0]["embedding"].shape[0],
    )
    ours = decoder(config, *theirs.args[2]["tokens"].shape)
    assert jax.tree.map(jnp.shape, ours.args[0]) == jax.tree.map(jnp.shape, theirs.args[0])
    assert loss_of(ours) == pytest.approx(loss_of(theirs), rel=1e-6)


def test_products_in_eight_bits_are_near_those_in_sixteen():
    wide = loss_of(decoder(TINY, 4, 32))
    narrow = loss_of(decoder(TINY, 4, 32, products="float8_e4m3fn", remat=("mlpwo",)))
    assert narrow != wide
    assert narrow == pytest.approx(wide, rel=0.02)


@pytest.mark.parametrize(("products", "short"), [("int8", "i8["), ("float4_e2m1fn", "f4")])
def test_other_narrow_products_have_narrow_operands(products: str, short: str):
    step = decoder(TINY, 4, 32, products=products)
    jaxpr = str(jax.make_jaxpr(step.fn)(*step.args))
    assert short in jaxpr
    with pytest.raises(ValueError, match="'float6' are not known; known: bfloat16"):
        jax.eval_shape(decoder(TINY, 4, 32, products="float6").fn, *step.args)


def test_tokens_are_balanced_over_experts_and_come_back():
    config = Decoder(
        layers=1, width=64, heads=8, kv_heads=4, hidden=64, vocabulary=128,
        experts=16, active=4, expert_hidden=32,
    )  # fmt: skip
    experts, slots, tokens = balanced(config)
    assert np.bincount(experts.reshape(-1)).tolist() == [config.slots] * config.experts
    for token, (some, at) in enumerate(zip(experts, slots, strict=True)):
        assert len(set(some)) == config.active
        assert (tokens[some * config.slots + at] == token).all()
    assert np.isfinite(loss_of(decoder(config, 2, 64)))


def test_what_is_offloaded_waits_on_the_host():
    names = ("query_proj", LAYER_INPUT)
    step = decoder(TINY, 4, 32, remat=("query_proj", "mlpwo"), offload=names)
    program = trace(step.fn, *step.args)
    stacks = [one for one in program.values if one.host and one.shape[0] == TINY.layers]
    # of 4 sequences of 32 tokens in bfloat16
    rows, features = TINY.layers * 4 * 32, {TINY.width, TINY.heads * TINY.head_size}
    assert {value.bytes for value in stacks} == {2 * rows * one for one in features}
    sent = [op for op in program.ops if op.primitive == "to_host"]
    back = [op for op in program.ops if op.primitive == "from_host"]
    assert len(sent) == len(back) == len(names)


def test_faults_are_said():
    with pytest.raises(ValueError, match=r"no published dimensions of 'lama2-7b'; did you mean"):
        decoder("lama2-7b")
    with pytest.raises(ValueError, match="kv_heads does not divide heads: the rest is 2"):
        Decoder(layers=1, width=64, heads=8, kv_heads=3, hidden=64, vocabulary=128)
    with pytest.raises(ValueError, match="a layer computes nothing called mlp; remat is 'none'"):
        loss_of(decoder(TINY, 4, 32, remat="mlp"))
    with pytest.raises(
        ValueError, match=r"called layer_input; .* offload has those and decoder_la"
    ):
        decoder(TINY, 4, 32, offload=("layer_input",))
    with pytest.raises(ValueError, match="with remat 'none' nothing says what of mlpwo is read"):
        decoder(TINY, 4, 32, remat="none", offload=("mlpwo",))
    with pytest.raises(ValueError, match="products in 'int4' are not known"):
        loss_of(decoder(TINY, 4, 32, products="int4"))
