"""Published points of serving engines: tables, questions, laws, and a sample of bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.cost.roofline import op_seconds
from autoshard.machine.as_measured import as_measured
from autoshard.machine.load import load
from autoshard.models.decoder import parameter_count
from autoshard.models.decoder_sizes import Decoder, sizes_of
from autoshard.study.measured.remat import UnreachableError
from autoshard.study.measured.table import TableError
from autoshard.study.served import Point, answer, read_points
from autoshard.study.served.answer import held_bytes, step_seconds
from autoshard.study.served.collectives import all_reduce_seconds
from autoshard.study.served.page import page, plot
from autoshard.study.served.question import question
from autoshard.study.served.summary import Ratios, ratio, waits

TABLE = Path(__file__).parents[3] / "benchmarks/served/points.csv"


def point(**cells: Any) -> Point:
    given = {"id": "one", "model": "llama2-70b", "chip": "H100", "chips": 4, "tp": 4, "batch": 1}
    return Point(**{**given, "input": 128, "output": 128, **cells})


def test_a_faulty_table_is_refused_with_a_line_for_each_fault(tmp_path: Path):
    path = tmp_path / "points.csv"
    path.write_text(
        "id,model,chip,chips,batch,input,weights,tpot_ms,arrival\n"
        "a,llama2-7b,H100,1.5,1,128,fp32,-3,at once\nb,,H100,1,1,128,fp8,,\nb,x,H100,1,1,1,,1,\n"
    )
    with pytest.raises(TableError) as raised:
        read_points(str(path))
    assert str(raised.value).split("\n")[1:] == [
        "  the column 'output' is missing",
        "  a: chips is '1.5'; it should be a whole number of 1 or more",
        "  a: arrival is 'at once'; it should be one of together, one by one",
        "  a: weights is 'fp32'; it should be one of fp16, bf16, fp8, fp4, int8",
        "  a: tpot_ms is '-3'; it should be a number above 0",
        "  b: model is empty",
        "  b: nothing was measured; give one of ttft_ms, tpot_ms, tokens_per_s",
    ]


def test_every_point_of_the_table_has_a_source_and_is_a_question():
    points = read_points(str(TABLE))
    assert len(points) > 100
    assert {one.quality[0] for one in points} == {"A", "B"}
    for one in points:
        assert one.repo, one.id
        assert one.path, one.id
        assert one.commit, one.id
        assert question(one).machine.chips == one.chips


def test_what_cannot_be_expressed_is_said():
    for cells, words in (
        ({"model": "llama9"}, "no published dimensions of 'llama9'"),
        ({"model": "nemotron-3-nano"}, "a model with pattern"),
        ({"chip": "TPU9"}, "no preset is a TPU9"),
        ({"chips": 8}, "8 chips of which 4 share a tensor"),
        ({"ep": 3}, "ep 3 does not divide tp 4"),
        ({"chip": "A100-80GB", "weights": "fp8"}, "a A100-80GB has no products in fp8"),
        ({"chips": 3, "tp": 3}, "64 heads with 8 of keys do not lie on 3 ranks"),
    ):
        with pytest.raises(UnreachableError, match=words):
            question(point(**cells))
    assert answer(point(model="llama9", tpot_ms=1.0)).status.startswith("unreachable: no published")


def test_heads_of_keys_are_held_by_several_ranks_where_there_are_too_few():
    assert question(point(chips=16, tp=16)).decoder.kv_heads == 16
    assert question(point()).decoder == sizes_of("llama2-70b")
    few, many = (held_bytes(question(p), p) for p in (point(), point(chips=16, tp=16)))
    table = 2 * 8192 * 32000  # the embedding is whole on every rank
    caches = 2 * 80 * 2 * 256 * 128  # bytes of one head of keys and values of all layers
    assert few - table == pytest.approx(
        2 * (parameter_count(sizes_of("llama2-70b")) - 8192 * 32000) / 4 + 2 * caches, rel=1e-3
    )
    assert many - table < (few - table) / 3.5


def test_sums_over_ranks_take_what_was_measured():
    """github.com/vllm-project/vllm, pulls 24111 and 24532: the fastest kernel of each size."""
    machine = load("h100-8")
    for ranks, mib, microseconds in (
        (2, 0.5, 7),
        (4, 0.5, 10),
        (4, 1, 14),
        (4, 1.5, 19),
        (4, 2, 21),
        (4, 3, 23),
        (4, 4, 28),
    ):
        found = 1e6 * all_reduce_seconds(machine, ranks, mib * 2**20)
        assert found == pytest.approx(microseconds, rel=0.08)
    with pytest.raises(ValueError, match="16 chips of h100-8 are not on one switch"):
        all_reduce_seconds(machine, 16, 1.0)


GEMM = (
    (64, 2112, 7168, 206), (64, 24576, 1536, 289), (64, 32768, 512, 219), (64, 7168, 16384, 336),
    (64, 4096, 7168, 287), (64, 7168, 2048, 295), (128, 2112, 7168, 352), (128, 24576, 1536, 535),
    (128, 32768, 512, 358), (128, 7168, 16384, 645), (128, 4096, 7168, 533), (128, 7168, 2048, 510),
    (4096, 7168, 16384, 1358),
)  # fmt: skip
"""Rows, columns, what is summed over, TFLOP/s of float8 products on an H800, whose chip and memory
are an H100's: README of github.com/deepseek-ai/DeepGEMM of February 2025."""


def test_products_of_few_rows_take_little_less_than_a_library_made_for_them():
    chip = as_measured(load("h100-1"), best=True).chip
    shares = []
    for rows, columns, inner, teraflops in GEMM:
        flops = 2.0 * rows * columns * inner
        moved = rows * inner + columns * inner + 2 * rows * columns
        shares.append(op_seconds(chip, flops, moved, "float8_e4m3fn") * teraflops * 1e12 / flops)
    assert 0.85 < sorted(shares)[len(shares) // 2] < 1.0
    assert min(shares) > 0.65
    assert max(shares) < 1.15


def test_layers_add_up():
    one = Decoder(layers=4, width=512, heads=8, kv_heads=8, hidden=1024, vocabulary=1024)
    asked = replace(question(point()), decoder=one)
    whole = step_seconds(asked, "decode", 8, 128)
    two, three = (
        step_seconds(replace(asked, decoder=replace(one, layers=n)), "decode", 8, 128)
        for n in (2, 3)
    )
    assert whole - three == pytest.approx(three - two)
    assert three - two > 9 * asked.machine.chip.launch_seconds + 2 * 5.6e-6


SAMPLE = (
    "tl9-l2-7b-h100-fp8-tp1-b1-128-128",
    "tl9-l2-70b-h200-fp8-tp4-b64-128-128",
    "tl6-l2-7b-a100-tp1-b52-2048-128",
    "nim-l3-70b-h100-tp4-c1-2000-200",
    "ix-dsr1-h200-tp8-c8",
    "ix-oss-mi300x-tp1-c64",
)


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """A sample of the table with its bounds, as `bench served` writes them."""
    found = []
    for one in read_points(str(TABLE)):
        if one.id in SAMPLE:
            told = answer(one)
            cells = {name: getattr(one, name) for name in one.__slots__}
            names = ("ttft_ms", "tpot_ms", "tokens_per_s", "memory_gb")
            cells |= {f"predicted_{name}": getattr(told, name) for name in names}
            found.append(cells | {"mesh": told.mesh, "status": told.status})
    return found


def test_bounds_hold_and_are_no_idle_ones(rows: list[dict[str, Any]]):
    assert len(rows) == len(SAMPLE)
    for row in rows:
        assert row["status"] == "priced"
        for measure in ("ttft", "tpot", "rate"):
            found = ratio(row, measure)
            assert found is None or 0.3 < found <= 1.0, (row["id"], measure, found)
    assert [waits(row) for row in rows] == [one.startswith("ix-") for one in SAMPLE]
    assert all(ratio(row, "ttft") is None for row in rows if waits(row))


def test_the_page_has_every_point_and_what_it_comes_to(rows: list[dict[str, Any]]):
    lost = {**rows[0], "id": "lost", "status": "unreachable: a reason", "predicted_tpot_ms": None}
    lost |= {"predicted_ttft_ms": None, "predicted_tokens_per_s": None}
    text = page([*rows, lost], "served.svg", "Made today.")
    assert "Of 7 points 6 are priced." in text
    assert "| 1 | a reason |" in text
    assert all(f"| {name} |" in text for name in (*SAMPLE, "lost"))
    assert "Made today." in text
    ours = page([{**rows[1], "ours": 0.5, "ours_mesh": "x=4"}], "served.svg", "")
    assert "predicted faster in 1 of 1 point," in ours
    assert f"| {SAMPLE[1]} | tensor=4 | x=4 | 0.50 |" in ours
    assert plot(rows).count("<circle") >= len(SAMPLE)


def test_ratios_say_where_a_bound_holds():
    found = Ratios.of([0.5, 1.0, 1.2])
    assert str(found) == "3 points, of which the bound holds for 2; median 1.00, 0.50 to 1.20"
    assert Ratios.of([]) is None
