"""Published runs in pipelines: their stages and schedules, and what a step of them takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoshard.models.decoder_sizes import Decoder, sizes_of
from autoshard.plan.records import Move
from autoshard.study.measured import Run, UnreachableError, answer, question, stages
from autoshard.study.measured.completed import ANY, completed, ruled_program
from autoshard.study.measured.data_parallel import of_rows, sides, weight_shapes
from autoshard.study.measured.eager import hidden_in_products
from autoshard.study.measured.pipeline import layers_of_stages
from autoshard.study.measured.question import describe

GPT3 = Run(
    id="175b", model="gpt3-175b", chip="A100-80GB", chips=64, framework="Megatron-LM", batch=64,
    sequence=2048, microbatch=1, dp=1, tp=8, pp=8, vpp=3, schedule="interleaved 1F1B",
    precision="fp16", remat="full",
)  # fmt: skip
"""arxiv.org/abs/2205.05198, table 5."""


def test_a_pipeline_is_stages_on_parts_of_the_machine():
    asked = question(GPT3)
    assert asked.pipeline is not None
    assert (asked.machine.chips, asked.pipeline.machine.chips) == (8, 64)
    assert dict(asked.rules.mesh) == {"tensor": 8}
    assert describe(asked) == "pipeline=8,tensor=8"
    assert (asked.microbatches, asked.pipeline.schedule) == (64, "interleaved")
    assert asked.pipeline.placement[:9] == (*range(8), 0)
    within = question(replace(GPT3, chips=16, pp=8, tp=2, batch=64)).pipeline
    assert within is not None
    near, far = (within.transfer_seconds(1e9)[a][b] for a, b in ((0, 1), (3, 4)))
    assert near < far  # within a host of eight, and between two
    vee = question(replace(GPT3, vpp=2, schedule="v-half")).pipeline
    assert vee is not None
    assert vee.placement == (*range(8), *reversed(range(8)))


def test_microbatches_of_pipelines_are_single_sequences_where_nothing_is_said():
    other = replace(GPT3, microbatch=None)
    assert question(other).microbatches == 64
    cells = {"framework": "torchtitan", "chips": 128, "schedule": "1F1B"}
    asked = question(replace(other, **cells))
    assert (asked.microbatches, dict(asked.rules.mesh)) == (32, {"replica": 2, "tensor": 8})
    assert any("a sequence each" in note for note in asked.notes)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"schedule": "waves"}, "the schedule 'waves' is not known; known: "),
        ({"pp": 6}, "pp 6 does not divide 64 devices"),
        ({"vpp": 16}, "96 layers are fewer than the 128 stages"),
        ({"tp": 3}, "tp 3 x cp 1 does not divide 8 devices"),
    ],
)
def test_pipelines_that_cannot_be(cells: dict[str, Any], reason: str):
    with pytest.raises(UnreachableError, match=reason):
        question(replace(GPT3, **cells))


@pytest.mark.parametrize(
    ("layers", "count", "found"),
    [
        (12, 4, [3, 3, 3, 3]),
        (14, 4, [3, 4, 4, 3]),  # embedding and logits count as a layer
        (13, 4, [3, 3, 4, 3]),
    ],
)
def test_layers_are_spread(layers: int, count: int, found: list[int]):
    assert layers_of_stages(layers, count) == found


def test_a_step_is_the_schedule_of_its_parts():
    asked = question(replace(GPT3, vpp=1, schedule="1F1B"))
    spent = {"F": 1.0, "B": 1.5, "W": 0.5, "once": 2.0, "data": 4.0}
    times = {("layers", kind): one for kind, one in spent.items()}
    parts = stages.Parts(times, {"layers": 10.0}, {"layers": 7.0}, 100.0)
    pipeline = asked.pipeline
    assert pipeline is not None
    found = stages.piped_of(asked, replace(pipeline), parts, "full")
    # of four seconds of sums a layer, one does not fit beside its last microbatch
    layers = sizes_of("gpt3-175b").layers // 8
    hops = 2 * 7 * pipeline.transfer_seconds(stages.sent_bytes(asked))[0][1]
    assert found.seconds == pytest.approx((64 + 7) * layers * 3.0 + hops + layers * 3.0, rel=0.01)
    assert found.needed_bytes == layers * (8 * 7.0 + 10.0 * 18) + 100.0


def test_a_published_pipeline_is_predicted():
    cells = {"chips": 16, "pp": 2, "vpp": 1, "schedule": "1F1B", "batch": 8}
    told = answer(replace(GPT3, model="megatron-22b", **cells), time_limit=1000.0)
    assert told.status.startswith("priced")
    # eight microbatches of 2,048 tokens: 8 FLOP a weight and token with full recomputation
    flops = 8 * 22e9 * 8 * 2048 / 16
    busy = flops / (312e12 * 0.859 * 0.85)
    assert told.predicted_seconds is not None
    assert busy * (1 + 1 / 8) < told.predicted_seconds < 2 * busy


def test_weights_of_a_pipeline_are_whole_on_context_parallel_ranks():
    cells = {"chips": 128, "cp": 2, "framework": "Megatron-Bridge", "settings": ""}
    asked = question(replace(GPT3, **cells))
    assert dict(asked.rules.mesh) == {"context": 2, "tensor": 8}
    assert asked.rules.parameters["embed"] == ()
    assert asked.hides_tensor
    assert stages.data_ranks(asked) == 2
    one = question(replace(GPT3, pp=1, chips=128, cp=2, batch=512, fsdp=8))
    assert one.rules.parameters["embed"] == ("fsdp", "context")
    assert not one.hides_tensor


def test_collectives_of_tensor_parallelism_are_hidden_but_for_their_first_part():
    def move(kind: str) -> Move:
        return Move(kind, ("tensor",), 8, 1, 4.0, 4.0, "layers/ffn", "", "bf16[8@tensor]")

    assert hidden_in_products(move("all_gather"), 8) == 0.5
    assert hidden_in_products(move("reduce_scatter"), 4) == 1.0
    assert hidden_in_products(move("all_to_all"), 8) == 4.0


def test_a_batch_of_one_is_told_from_a_weight_of_its_other_sizes():
    assert sides((8192, 1, 28672)) != sides((28672, 8192)) == sides((8192, 28672))


def test_the_embedding_is_summed_once_a_step_where_a_plan_gathers_its_few_tokens():
    small = Decoder(layers=2, width=256, heads=4, kv_heads=4, hidden=512, vocabulary=65536)
    cells = {"model": "llama2-7b", "chips": 32, "tp": 1, "pp": 2, "vpp": 1, "schedule": "1F1B"}
    asked = question(replace(GPT3, **{**cells, "batch": 32, "sequence": 256, "precision": "bf16"}))
    asked = replace(asked, decoder=small)
    parts = stages.parts_of(asked, "full", 20.0)
    assert parts.seconds["embed", "data"] == parts.seconds["unembed", "data"] > 0
    one = replace(asked, batch=16, microbatches=1, decoder=replace(small, layers=1))
    plan = completed(ruled_program(one, "full"), one, ANY, 20.0)
    rows = [move for move in plan.moves if of_rows(move, weight_shapes(small))]
    assert {move.kind for move in rows} == {"all_gather"}
    compiled = stages.parts_of(replace(asked, eager=False), "full", 20.0)
    more = compiled.seconds["embed", "B"] - parts.seconds["embed", "B"]
    assert 0 < more <= sum(move.seconds for move in rows)
    tied = stages.parts_of(replace(asked, decoder=replace(small, tied=True)), "full", 20.0)
    assert tied.seconds.get(("embed", "data"), 0.0) == 0
