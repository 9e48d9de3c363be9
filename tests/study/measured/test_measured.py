"""Published runs: tables, the questions they are, and a sample of predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.compiler.target import why_missing
from autoshard.machine.load import load
from autoshard.models.decoder_sizes import Decoder, published
from autoshard.study.measured import (
    Run,
    TableError,
    UnreachableError,
    answer,
    question,
    read_table,
    summary,
)
from autoshard.study.measured.models import decoder_of
from autoshard.study.measured.page import page, plot
from autoshard.study.measured.question import measured_seconds
from autoshard.study.measured.summary import UNASKED, Order, held, orders, rank_correlation, spreads
from autoshard.study.measured.table import half

V6E = Run(
    id="8b",
    model="llama3.1-8b",
    chip="v6e",
    chips=8,
    framework="MaxText",
    batch=24,
    sequence=8192,
    microbatch=3,
    dp=1,
    fsdp=8,
    precision="bf16",
    remat="custom decoder_layer_input=offload out_proj=offload query_proj=offload "
    "key_proj=offload value_proj=offload",
    step_seconds=3.443,
)
"""github.com/AI-Hypercomputer/tpu-recipes, training/trillium/Llama3.1-8B-MaxText/v6e-8."""


def run(**cells: Any) -> Run:
    given = {"id": "one", "model": "llama2-7b", "chip": "H100", "chips": 64, "batch": 128}
    return Run(**{**given, "sequence": 4096, "precision": "bf16", "remat": "full", **cells})


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Llama 3.1 8B", "llama3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("Llama3_70B", "llama3.1-70b"),
        ("llama-2-13b-chat-hf", "llama2-13b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("gemma-2-9b-it", "gemma2-9b"),
        ("Qwen/Qwen2.5-72B", "qwen2.5-72b"),
        ("GPT OSS 20B", "gpt-oss-20b"),
        ("GPT-3 13B", "gpt3-13b"),
        ("DeepSeek-R1", "deepseek-v3"),
        ("maxtext 16B (base.yml, global_parameter_scale=16)", "maxtext-16b"),
    ],
)
def test_models_are_found_by_any_usual_name(name: str, model: str):
    assert decoder_of(name) == published()[model]


def test_other_models_are_not_taken_for_those():
    for name in ("Llama 3.1 80B", "llama", "mixtral-8x7b-8x22b", ""):
        assert decoder_of(name) == (
            f"no published dimensions of {name!r} are among those of autoshard"
        )


def test_a_faulty_table_is_refused_with_a_line_for_each_fault(tmp_path: Path):
    path = tmp_path / "runs.csv"
    path.write_text(
        "id,model,chips,fsdp,seq\na,llama2-7b,8,16 x 8 (fsdp_transpose),-1\na,,x,2.5,\n"
    )
    with pytest.raises(TableError) as raised:
        read_table(str(path))
    assert str(raised.value).split("\n")[1:] == [
        "  the column 'chip' is missing",
        "  a: seq is '-1'; it should be a whole number",
        "  a: chips is 'x'; it should be a whole number",
        "  a: fsdp is '2.5'; it should be a whole number, or several as 16 x 8",
        "  a: model is empty",
    ]


def test_a_run_is_read_as_it_was_published(tmp_path: Path):
    path = tmp_path / "runs.csv"
    path.write_text(
        "id,model,chip,chips,fsdp,mfu_pct,other\na,m,v4,8,16 x 8 (fsdp_transpose),40,x\n"
    )
    assert read_table(str(path)) == [Run(id="a", model="m", chip="v4", chips=8, fsdp=128, mfu=40.0)]


def test_meshes_and_machines_are_those_of_the_runs():
    asked = question(run(framework="MaxText", chip="v5p", units=2, dp=2, fsdp=8, tp=4))
    assert dict(asked.rules.mesh) == {"replica": 2, "fsdp": 8, "tensor": 4}
    assert (asked.machine.name, asked.remat, asked.microbatches) == ("2xv5p-32", ("full",), 1)
    cells = {"framework": "MaxText", "chip": "v5e", "fsdp": 8, "tp": 8, "microbatch": 1}
    assert question(run(**cells)).microbatches == 1
    asked = question(run(framework="Megatron-LM", dp=16, tp=2, cp=2, microbatch=1, precision="FP8"))
    assert dict(asked.rules.mesh) == {"fsdp": 16, "context": 2, "tensor": 2}
    assert (asked.microbatches, asked.products) == (8, "float8_e4m3fn")
    asked = question(run(model="qwen3-30b-a3b", dp=64, ep=16))
    assert dict(asked.rules.mesh) == {"fsdp": 4, "expert": 16}
    asked = question(run(model="Nemotron_3_Super", dp=32, tp=2, ep=64, sequence=8192))
    assert dict(asked.rules.mesh) == {"expert": 32, "tensor": 2}
    assert asked.rules.parameters["expert"] == ("expert", "tensor")
    piped = question(run(model="qwen3-30b-a3b", dp=8, tp=2, pp=4, ep=16))
    assert dict(piped.rules.mesh) == {"expert": 8, "tensor": 2}
    assert piped.rules.parameters["expert"] == ("expert",)
    words = "A100 40GB with 1600 Gbps node-node interconnect (RoCE)"
    machine = question(run(chip="A100-40GB", topology=words, fsdp=64)).machine
    assert machine.network[1].chip_bandwidth == 25e9  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("topology", "bandwidth"),
    [
        ("8 x A3 (h100-80gb-8)", 12.5e9),
        ("8 x A3 (h100-mega-80gb-8)", 25e9),
        ("gpu-p5.48xlarge x 8", 50e9),
        ("8 hosts", 25e9),
    ],
)
def test_a_machine_type_goes_before_what_notes_say_of_the_network(topology: str, bandwidth: float):
    asked = question(run(topology=topology, notes="8 x 200 Gb/s NICs", fsdp=64))
    assert asked.machine.network[1].chip_bandwidth == bandwidth  # type: ignore[union-attr]


def test_flags_of_recipes_are_those_of_maxtext_on_gpus_and_of_all_on_tpus():
    flagged = {
        (framework, chip): question(run(framework=framework, chip=chip, fsdp=64)).machine
        for framework in ("MaxText", "AXLearn", "Megatron-LM")
        for chip in ("H100", "v5p")
    }
    assert [key for key, machine in flagged.items() if machine.chip.compiler.flags == "recipe"] == [
        ("MaxText", "H100"),
        *((framework, "v5p") for framework in ("MaxText", "AXLearn", "Megatron-LM")),
    ]
    with_them, without = flagged["MaxText", "H100"], flagged["AXLearn", "H100"]
    assert with_them.overlap == load("h100-64@recipe").overlap == without.overlap
    shares = [machine.chip.compiler.pipelined for machine in (with_them, without)]
    assert shares == [load("h100-64@recipe").chip.compiler.pipelined, 0.0]
    assert shares[0] > with_them.overlap


@pytest.mark.parametrize(("plain", "ultra"), [("B200", "B300"), ("GB200", "GB300")])
def test_blackwell_ultra_is_faster_in_four_bits_and_attention_alone(plain: str, ultra: str):
    one, other = (question(run(chip=chip, fsdp=64)).machine.chip for chip in (plain, ultra))
    assert other.matmul_flops("bfloat16") == one.matmul_flops("bfloat16")
    assert other.peak_flops["float8"] == one.peak_flops["float8"]
    assert other.peak_flops["float4"] > 1.3 * one.peak_flops["float4"]
    assert other.peak_flops["int8"] < 0.1 * one.peak_flops["int8"]
    assert (one.kernel_share or 0) < 0.9 < (other.kernel_share or 0) <= 1.0


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": "qwen3.5-9b"}, "linear attention"),
        ({"model": "unheard-of"}, "no published dimensions of 'unheard-of'"),
        ({"chip": "Trainium2"}, "no preset is a Trainium2"),
        ({"sequence": None}, "the source does not say its sequence"),
        ({"fsdp": 8, "dp": 2}, "dp 2 x fsdp 8 x tp 1 x cp 1 is not 64 devices"),
        ({"batch": 100, "fsdp": 64}, "100 sequences do not divide over 64"),
        ({"remat": "some"}, "remat 'some' is not a policy"),
        ({"precision": "FP4 or FP8"}, "products in FP4 or FP8"),
    ],
)
def test_what_cannot_be_expressed_is_said(cells: dict[str, Any], reason: str):
    with pytest.raises(UnreachableError, match=reason):
        question(run(**cells))
    assert answer(run(**cells)).status.startswith("unreachable: ")


def test_further_tokens_are_a_model_of_their_own():
    with_them, without = (decoder_of(f"DeepSeekV3 ({word} MTP)") for word in ("w/", "w/o"))
    assert isinstance(with_them, Decoder)
    assert with_them.further == 1
    assert isinstance(without, Decoder)
    assert replace(with_them, further=0) == without


def test_published_flops_become_seconds():
    one = run(model="llama2-7b", chip="v5e", chips=256, fsdp=256, batch=256, tflops=100.0)
    seconds, how = measured_seconds(one, question(one))
    # 6 x (6.738e9 less an embedding of 32,000 x 4,096), and 12 x 32 x 4,096 x 4,096 of attention
    per_token = 6 * (6.738e9 - 32000 * 4096) + 12 * 32 * 4096 * 4096
    assert seconds == pytest.approx(4096 * per_token / 1e14, rel=1e-3)
    assert how == "seconds from the published FLOP/s"


def test_rows_are_held_to_their_measurements():
    rows = [
        {"model": "m", "chip": "c", "status": "priced", "parallelism": "fsdp=8",
         "measured_seconds": seconds, "predicted_seconds": predicted}
        for seconds, predicted in ((1.0, 1.2), (2.0, 1.0), (3.0, 3.0))
    ]  # fmt: skip
    lost = {"model": "m", "chip": "c", "status": "unreachable: why"}
    found = held(rows)
    assert (found.runs, found.median, found.bias) == (3, pytest.approx(0.2), pytest.approx(1.0))
    assert (found.within, found.close) == pytest.approx((2 / 3, 1 / 3))
    assert rank_correlation([1, 2, 3], [2, 1, 3]) == pytest.approx(0.5)
    text = summary([*rows, lost])
    assert "not priced: 1 of 4\n  1 x why" in text
    assert "mesh fsdp: 3 runs" in text


def test_pairs_are_apart_where_they_differ_by_more_than_runs_of_one_configuration():
    def row(mesh: str, measured: float, predicted: float, model: str = "m") -> dict[str, Any]:
        return {"model": model, "chip": "c", "parallelism": mesh, "measured_seconds": measured,
                "predicted_seconds": predicted}  # fmt: skip

    rows = [row("a", 1.0, 1.0), row("a", 1.1, 1.0), row("b", 1.1, 0.9), row("d", 2.0, 3.0)]
    assert spreads(rows) == {"m on c": pytest.approx(0.1 / 1.05)}
    found = orders(rows)["m on c"]
    assert (found.configurations, found.apart, found.right) == (3, 2, 2)
    assert found.correlation == pytest.approx(0.5)
    alone = [row(mesh, seconds, 1.0, "n") for mesh, seconds in (("a", 1.0), ("b", 1.05))]
    more = orders([*rows, *alone, row("d", 3.0, 2.0, "n")])["n on c"]
    assert (more.apart, more.right) == (2, 2)


def test_pairs_out_of_order_are_told_with_what_runs_of_one_configuration_differ_by():
    def row(name: str, measured: float, predicted: float, **cells: str) -> dict[str, Any]:
        return {"id": name, "model": "m", "chip": "c", "chips": 8, "status": "priced",
                "parallelism": name[0], "measured_seconds": measured, "jax": "yes", "quality": "B",
                "predicted_seconds": predicted, **cells}  # fmt: skip

    same = [row("a1", 1.0, 1.0), row("a2", 1.1, 1.0)]
    rows = [*same, row("b", 1.1, 0.9), row("d", 2.0, 0.8)]
    near, far, other = orders(rows)["m on c"].swaps
    assert (near.faster, near.slower, far.faster, far.slower) == ("a1", "b", "a1", "d")
    assert (other.faster, other.slower) == ("b", "d")
    assert near.measured == pytest.approx(1.1 / 1.05 - 1)
    assert near.predicted == pytest.approx(-0.1)
    assert near.spread == far.spread == pytest.approx(0.1 / 1.05)
    assert near.published
    rows[-1]["status"] = "priced; parallelism not published: taken to be FSDP"
    text = page(rows, "plot.svg")
    assert "quality A and B alone it is in 0 of 1: m on c -1.00." in text
    assert "whose source says their mesh" not in text  # two configurations have no order
    assert "Of 3 pairs in groups below 0.9, 1 are nearer than runs of one configuration" in text
    assert "and of 2 others the source of one does not say its mesh" in text
    assert "| m on c | a1 | d | 90.5 %; mesh not published | -20.0 % | 9.5 % |" in text


def test_runs_in_another_precision_are_another_configuration():
    row = {"model": "m", "chip": "c", "status": "priced", "parallelism": "fsdp=8"}
    one, other = ({**row, "precision": word} for word in ("FP8", "MXFP8"))
    rows = [{**some, "measured_seconds": 1.0 + extra, "predicted_seconds": 1.0}
            for some, extra in ((one, 0.0), (one, 0.1), (other, 0.9))]  # fmt: skip
    assert spreads(rows) == {"m on c": pytest.approx(0.1 / 1.05)}


def test_the_page_says_halves_and_what_is_beaten():
    row = {"status": "priced", "jax": "no", "quality": "A", "chips": 8, "ours_mesh": "x=8",
           "ours_choices": "1 stack on the host"}  # fmt: skip
    rows = [
        {**row, "id": "a", "model": "m", "chip": "c", "parallelism": "pipeline=2,fsdp=4",
         "measured_seconds": 1.0, "predicted_seconds": 1.2, "own_seconds": 1.5,
         "ours_seconds": 1.2, "measured_gib": 10.0, "predicted_gib": 8.0, "version": "1",
         "own_compiled": 1.4, "ours_compiled": 1.26, "own_compiled_gib": 9.0,
         "ours_compiled_gib": 9.5},
        {**row, "id": "b", "model": "n", "chip": "c", "parallelism": "fsdp=8",
         "measured_seconds": 1.0, "predicted_seconds": 0.9, "ours_seconds": 0.9, "jax": "yes"},
        {**row, "id": "c", "model": "n", "chip": "c", "parallelism": "",
         "status": "unreachable: it took longer than 40 s"},
        {**row, "id": "d", "model": "n", "chip": "c", "parallelism": "",
         "status": "unreachable: so"},
        {**row, "id": "e", "model": "n", "chip": "c", "parallelism": "", "status": UNASKED},
    ]  # fmt: skip
    assert {half(one) for one in rows} == {"seen", "blind"}
    text = page(rows, "plot.svg")
    assert "| other frameworks, pipelines | 1 | 20.0 % | 1.20 | 100 % |" in text
    assert f"| all: {half(rows[1])} | 1 | 10.0 % | 0.90 | 100 % |" in text
    assert "faster than it in 1 of 2 runs, by a tenth or more in 1; 0.90 of its seconds" in text
    assert "| a | pipeline=2,fsdp=4 | x=8 | 1 stack on the host | 1.5 | 1.2 | 0.80 |" in text
    assert (
        "Of 5 runs 3 are not held to a time: 1 (20.0 %) are out of reach, by the reasons below, "
        "1 were not asked, and 1 ran out of time: c.\nAnswers are of several versions of the "
        "model: 4 of one that is not known, 1 of 1."
    ) in text
    assert "| a | pipeline=2,fsdp=4 | 10.0 | 8.0 | 0.80 |" in text
    assert "of 1 runs the compiler's schedule agrees in 1 on which is faster" in text
    assert "| a | c | 1.4 | 1.26 | 0.90 | 0.80 | 9.0 | 9.5 |" in text


def test_runs_of_one_configuration_have_one_place_in_the_order():
    row = {"model": "m", "chip": "c", "status": "priced", "parallelism": "fsdp=8"}
    pairs = ((1.0, 1.0), (9.0, 1.0), (1.2, 1.0), (2.0, 2.0), (3.0, 3.0))
    rows = [{**row, "measured_seconds": a, "predicted_seconds": b} for a, b in pairs]
    assert orders(rows) == {"m on c": Order(3, pytest.approx(1.0), 0, 0)}


def test_a_published_run_is_predicted_and_beaten():
    told = answer(V6E, time_limit=1000.0)
    assert told.parallelism == "fsdp=8"
    assert told.predicted_seconds == pytest.approx(3.443, rel=0.15)
    assert told.predicted_gib is not None
    assert 20 < told.predicted_gib < 32


@pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")
def test_a_run_and_our_plan_of_it_are_compiled():
    small = run(
        model="mpt-125m", framework="MaxText", chips=8, fsdp=8, batch=64, sequence=2048,
        step_seconds=0.1,
    )  # fmt: skip
    told = answer(small, ours=10.0, compiles=300.0)
    assert "attention by cuDNN" in told.status
    assert told.own_compiled is not None
    assert told.ours_compiled is not None
    assert told.own_seconds == pytest.approx(told.own_compiled, rel=0.3)
    assert told.predicted_gib == pytest.approx(told.own_compiled_gib, rel=0.2)
    piped = answer(replace(small, dp=1, fsdp=None, pp=8, batch=8), ours=10.0, compiles=300.0)
    assert "not compiled: its configuration is a pipeline" in piped.status


def test_every_chip_of_a_plot_has_a_mark_of_its_own():
    rows = [
        {"chip": f"c{number:02}", "measured_seconds": "1", "predicted_seconds": "1"}
        for number in range(20)
    ]
    drawn = plot(rows)
    # all runs lie at one point, so that their marks differ in shape and colour alone
    marks = [line for line in drawn.splitlines() if line.startswith(("<circle", '<rect x="'))]
    assert len(marks) == 2 * len(rows)
    assert len(set(marks[: len(rows)])) == len(rows)
