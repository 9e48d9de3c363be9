"""Tokens a second and MFU, by hand, and how plans keep and tell them."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.plan.records import Work
from autoshard.plan.text.page import format_plan
from autoshard.plan.work import work_of, work_rows, work_texts
from autoshard.show.verdict import verdict

TOKENS, WIDTH, VOCABULARY = (4, 512), 256, 1024


def step(table, weight, tokens):
    """A product in bfloat16, computed again for the backward pass, and one in float32."""

    def loss(weight):
        rows = table[tokens].astype(jnp.bfloat16)
        made = jax.checkpoint(lambda w: jnp.tanh(rows @ w))(weight)
        return jnp.sum((made.astype(jnp.float32) @ table.T) ** 2)

    return jax.grad(loss)(weight)


ARGS = (
    jax.ShapeDtypeStruct((VOCABULARY, WIDTH), jnp.float32),
    jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16),
    jax.ShapeDtypeStruct(TOKENS, jnp.int32),
)


def test_products_count_once_at_the_peaks_of_their_dtypes_on_all_chips():
    rows = TOKENS[0] * TOKENS[1]
    narrow = 2 * 2 * rows * WIDTH * WIDTH  # forward, and with respect to the weight
    wide = 2 * 2 * rows * WIDTH * VOCABULARY  # forward, and with respect to its input
    machines = [autoshard.load_machine("h100-8"), autoshard.load_machine("v5e-4")]
    peak = {
        dtype: sum(one.chips * one.chip.matmul_flops(dtype) for one in machines)
        for dtype in ("bfloat16", "float32")
    }
    work = work_of(autoshard.trace(step, *ARGS), machines)
    assert work.tokens == rows
    assert work.peak_seconds == pytest.approx(narrow / peak["bfloat16"] + wide / peak["float32"])


def test_texts_and_rows_say_what_is_known():
    work = Work(tokens=1_000_000, peak_seconds=0.1)
    assert work_texts(work, 0.25, 8) == ["4,000,000 tokens/s, 500,000 a chip", "MFU 40.0 %"]
    assert [row[:2] for row in work_rows(work, 0.25, 8)] == [
        ("tokens", "4,000,000/s"),
        ("MFU", "40.0 %"),
    ]
    assert work_texts(Work(None, 0.1), 0.25, 8) == ["MFU 40.0 %"]
    assert work_texts(Work(8, 0.0), 0.25, 8) == ["32 tokens/s, 4 a chip"]
    assert work_texts(None, 0.25, 8) == work_rows(None, 0.25, 8) == []
    assert work_texts(work, 0.0, 8) == work_rows(work, 0.0, 8) == []


def test_a_plan_keeps_it_and_tells_it_without_its_program():
    plan = autoshard.search(autoshard.trace(step, *ARGS), "v5e-8", mesh={"x": 8}, baselines=False)
    read = autoshard.Plan.from_json(plan.to_json())
    assert read.work == plan.work is not None
    told = work_texts(plan.work, plan.estimate.step_seconds, 8)
    assert len(told) == 2
    fast = next(one for one in verdict(read).answers if one.question == "How fast?")
    assert all(words in fast.detail for words in told)
    assert f"throughput: {', '.join(told)}" in str(read)
    assert "MFU" in format_plan(read)
    older = {key: value for key, value in plan.to_json().items() if key != "work"}
    assert autoshard.Plan.from_json(older) == replace(plan, work=None)
