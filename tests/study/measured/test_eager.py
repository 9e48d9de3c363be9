"""What other frameworks do otherwise than a plan: tokens once a place, nothing stacked."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from autoshard.models.decoder import parameter_count
from autoshard.models.decoder_sizes import Decoder
from autoshard.plan.fits import needed_bytes
from autoshard.search.assemble import prices_of
from autoshard.study.measured import Run, question
from autoshard.study.measured.completed import ANY, completed, ruled_program
from autoshard.study.measured.data_parallel import weight_shapes
from autoshard.study.measured.dispatch import INSIDE, distinct_places, exchange_seconds, is_exchange
from autoshard.study.measured.eager import eager_bytes, eager_seconds
from autoshard.study.measured.question import measured_seconds
from autoshard.study.measured.saved import layer_bytes


def run(**cells: Any) -> Run:
    given = {"id": "one", "model": "qwen3-30b-a3b", "chip": "GB200", "chips": 8, "batch": 8}
    given |= {"sequence": 4096, "precision": "bf16", "remat": "full", "fsdp": 0, "ep": 8}
    return Run(**{**given, "framework": "Megatron-Bridge", **cells})


@pytest.mark.parametrize(("experts", "active", "places"), [(8, 2, 4), (6, 3, 2), (9, 1, 3)])
def test_distinct_places_are_those_of_all_choices(experts: int, active: int, places: int):
    each = experts // places
    choices = list(itertools.combinations(range(experts), active))
    mean = sum(len({one // each for one in some}) for some in choices) / len(choices)
    assert distinct_places(experts, active, places) == pytest.approx(mean)


def test_tokens_go_once_to_a_device_or_between_hosts_once_to_a_host():
    eight, there, back = INSIDE["GB200"][0]
    sent = 2 * 4096 * 2048 * distinct_places(128, 8, eight)
    mean = (sent / there + sent / back) / 2
    assert exchange_seconds(question(run())) == pytest.approx(mean)
    half = exchange_seconds(question(run(batch=16, microbatch=1)))
    assert half == pytest.approx(mean)
    far = exchange_seconds(question(run(chip="H100", chips=16, batch=16, ep=16)))
    remote = 2 * 4096 * 2048 * distinct_places(128, 8, 2) / 2
    assert far == pytest.approx(remote / 2 * (1 / 71.71e9 + 1 / 62.95e9))
    assert exchange_seconds(question(run(chip="H100"))) is None
    assert exchange_seconds(question(run(framework="MaxText"))) is None


@pytest.mark.long
def test_gradients_of_tokens_come_back_by_exchanges_and_not_by_sums():
    small = Decoder(layers=2, width=512, heads=4, kv_heads=2, hidden=512, vocabulary=512,
                    experts=16, active=2, expert_hidden=512)  # fmt: skip
    asked = replace(question(run(sequence=256)), decoder=small, attention="plain")
    program = ruled_program(asked, "full")
    plan = completed(program, asked, ANY, 20.0)
    ways = [one for one in plan.moves if is_exchange(one, weight_shapes(small))]
    assert {one.kind for one in ways} == {"all_to_all"}
    prices = prices_of(plan, program, asked.machine)
    assert eager_seconds(plan, prices, asked) < plan.estimate.expected_seconds


def test_torchtitan_keeps_every_second_product_and_reserves_gradients_and_logits():
    cells = {"framework": "torchtitan", "model": "llama3.1-8b", "chip": "H100", "ep": 1, "fsdp": 8}
    words = "selective activation checkpointing"
    asked = question(run(**cells, remat=words, path="benchmarks/h100_202412.md"))
    kept = ("query_proj", "value_proj", "mlpwi_0", "mlpwo", "context")
    assert asked.remat == (kept,)
    assert question(run(**{**cells, "remat": words, "precision": "float8"})).remat == (kept,)
    small = Decoder(layers=1, width=64, heads=2, kv_heads=1, hidden=64, vocabulary=4096)
    asked = replace(asked, decoder=small, sequence=128, batch=64)
    program = ruled_program(asked, "full")
    plan = completed(program, asked, ANY, 20.0)
    weights, tables = 16 * parameter_count(small) / 8, 2 * 2 * 4096 * 64
    logits, kept_bytes = 8 * 128 * 4096, 2 * 8 * 128 * 64
    prices = prices_of(plan, program, asked.machine)
    found = eager_bytes(plan, prices, asked, "full")
    assert asked.plain_loss
    assert found == pytest.approx(weights + tables + kept_bytes + 14 * logits, rel=0.01)
    later = replace(asked, plain_loss=False)
    assert found - eager_bytes(plan, prices, later, "full") == pytest.approx(10 * logits)
    other = eager_bytes(plan, prices, replace(asked, reserves=False), "full")
    assert other == needed_bytes(plan.estimate)


def test_megatron_without_fused_attention_saves_what_its_paper_says():
    cells = {"framework": "Megatron-LM", "model": "megatron-22b", "chip": "A100-80GB", "ep": 1}
    cells |= {"group": "Megatron memory (Korthikanti et al., figure 1)", "fsdp": 1, "tp": 8}
    cells |= {"batch": 4, "sequence": 2048, "microbatch": 4}
    stream = 4 * 2048 * 6144
    asked = question(run(**{**cells, "remat": "none"}))
    # arxiv.org/abs/2205.05198, equation 2, with 64 heads
    wanted = stream * (10 + 24 / 8 + 5 * 64 * 2048 / (6144 * 8))
    assert layer_bytes(asked, asked.remat[0]) == pytest.approx(wanted)
    some = question(run(**{**cells, "remat": "seqsel"}))
    assert layer_bytes(some, some.remat[0]) == pytest.approx(34 * stream / 8)
    assert layer_bytes(question(run(**cells)), "full") == 2 * stream
    assert layer_bytes(question(run(**{**cells, "group": ""})), "full") is None


def test_a_batch_and_seconds_follow_from_microbatches_and_tokens():
    one = run(chip="H100", chips=64, ep=1, fsdp=64, batch=None, microbatch=2, token_rate=1000.0)
    asked = question(one)
    assert (asked.batch, asked.microbatches) == (128, 1)
    assert "batch not published: taken to be a microbatch a rank" in asked.notes
    assert measured_seconds(one, asked) == (2 * 4096 / 1000, "seconds from tokens/s")
