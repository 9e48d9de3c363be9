"""Collectives of tensor parallelism as frameworks make them, and casts of float8 recipes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoshard.cost.collective import MeshTopology
from autoshard.models.decoder_sizes import Decoder
from autoshard.search.assemble import prices_of
from autoshard.study.measured import Run, question
from autoshard.study.measured.completed import ANY, completed, ruled_program
from autoshard.study.measured.eager import eager_seconds
from autoshard.study.measured.question import Question
from autoshard.study.measured.tensor_parallel import cast_seconds, tensor_seconds

TOKENS = 16 / 2 * 1024
"""Of a data-parallel rank."""


def asked(**cells: Any) -> Question:
    given = {"id": "one", "model": "llama3.1-8b", "chip": "H100", "chips": 8, "batch": 16}
    given |= {"sequence": 1024, "precision": "bf16", "remat": "none", "fsdp": 2, "tp": 4}
    return question(Run(**{**given, "framework": "torchtitan", **cells}))


def seconds(one: Question) -> float:
    found = tensor_seconds(one, topology(one))
    assert found is not None
    return found


def topology(one: Question) -> MeshTopology:
    return MeshTopology(one.machine, tuple(one.rules.mesh.values()))


def collective(one: Question, kind: Any, sent: float) -> float:
    return topology(one).collective_seconds(kind, (1,), sent)


def test_a_part_of_a_layer_gathers_three_times_and_scatters_twice():
    one = asked()
    sent = 2 * TOKENS * 4096
    gather, scatter = (collective(one, kind, sent) for kind in ("all_gather", "reduce_scatter"))
    assert seconds(one) == pytest.approx(32 * (6 * gather + 4 * scatter))
    remade = asked(remat="full activation checkpointing")
    assert seconds(remade) == pytest.approx(32 * (6 * gather + 5 * scatter))
    thrice = seconds(asked(batch=48, accumulate=3))
    assert thrice == pytest.approx(3 * seconds(one))


def test_operands_are_gathered_in_float8_where_they_are_scaled_tensorwise():
    one = asked(precision="float8")
    sent = 2 * TOKENS * 4096
    gather, scatter = (
        collective(one, "all_gather", sent / 2),
        collective(one, "reduce_scatter", sent),
    )
    assert seconds(one) == pytest.approx(32 * (6 * gather + 4 * scatter))
    assert seconds(asked(precision="float8 rowwise")) == pytest.approx(seconds(asked()))


def test_beside_a_product_a_collective_is_hidden_for_as_long_as_the_product_takes():
    one = asked(settings="async TP")
    chip, sent = one.machine.chip, 2 * TOKENS * 4096
    most = chip.matmul_flops("bfloat16") * chip.matmul_efficiency
    both = [collective(one, kind, sent) for kind in ("all_gather", "reduce_scatter")]

    def left(collective: float, columns: int) -> float:
        product = 2 * TOKENS * 4096 * columns / 4 / most
        return max(collective / 4, collective - product)

    expected = 0.0
    for into, out in ((4096 + 2 * 1024, 4096), (2 * 14336, 14336)):
        expected += 2 * left(both[0], into) + left(both[0], out)
        expected += left(both[1], into) + left(both[1], out)
    assert seconds(one) == pytest.approx(32 * expected)
    assert seconds(one) < 0.7 * seconds(asked())
    rowwise = asked(settings="async TP", precision="float8 rowwise")
    assert seconds(rowwise) > 32 * 6 * both[0]


def test_of_experts_and_of_one_rank_nothing_is_said():
    alone = asked(tp=1, fsdp=8)
    assert tensor_seconds(alone, topology(alone)) is None
    experts = asked(model="qwen3-30b-a3b")
    assert tensor_seconds(experts, topology(experts)) is None


def test_casts_are_of_inputs_and_gradients_that_a_rank_has():
    assert cast_seconds(asked()) == 0.0
    cut = (2 * 4096 + 2 * 1024 + 3 * 14336) / 4
    one, other = asked(precision="float8"), asked(precision="float8 rowwise")
    rate = one.machine.chip.memory_rate
    each = 32 * TOKENS / rate
    assert cast_seconds(one) == pytest.approx((6 - 3) * each * (4 * 4096 / 4 + cut))
    assert cast_seconds(other) == pytest.approx((8 - 3) * each * (4 * 4096 + cut))


@pytest.mark.long
def test_a_step_has_these_collectives_in_place_of_its_plans():
    small = Decoder(layers=2, width=512, heads=4, kv_heads=4, hidden=512, vocabulary=512)
    one = replace(asked(), decoder=small, attention="plain")
    plan = completed(ruled_program(one, "full"), one, ANY, 20.0)
    prices = prices_of(plan, ruled_program(one, "full"), one.machine)
    fused = replace(one, hides_tensor=True)
    saved = eager_seconds(plan, prices, one) - eager_seconds(plan, prices, fused)
    assert saved == pytest.approx(seconds(one) - seconds(fused))
    assert saved > 0
