"""`autoshard bench plans`: hand-made plans and ours, each compiled, none lost by an interrupt."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli.bench import load_benchmark
from autoshard.cli.main import main
from autoshard.compiler.target import why_missing
from tests.cli.helpers import refused
from tests.helpers import sampled

PLANS = load_benchmark("plans")
ROW = load_benchmark("plans_row")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def asked(word: str, plan: str, degree: int = 0) -> dict[str, Any]:
    (row,) = PLANS.read_rows([word])
    limits = {"time_limit": 20.0, "compile_limit": 300.0, "refine": 0}
    return {**row._asdict(), "plan": plan, "degree": degree, **limits}


def test_rows_are_read():
    rows = PLANS.read_rows(
        ["llama3-8b@v5p-64", "vit-l16:256@h100-8@2,4", "mixtral-8x7b/3:8x1024@h100-8"]
    )
    assert [tuple(row) for row in rows] == [
        ("llama3-8b", None, (), "v5p-64", (4,)),
        ("vit-l16", None, (256,), "h100-8", (2, 4)),
        ("mixtral-8x7b", 3, (8, 1024), "h100-8", (4,)),
    ]
    assert [row.name for row in rows] == ["llama3-8b", "vit-l16:256", "mixtral-8x7b/3:8x1024"]


def test_every_default_row_is_a_row_of_a_program_and_a_machine():
    from autoshard import load_machine

    rows = PLANS.read_rows(PLANS.DEFAULT_ROWS)
    for row in rows:
        chips = load_machine(row.machine).chips
        assert all(chips % degree == 0 for degree in row.degrees)
        step = ROW.step_of(row.program, row.layers, row.sizes)
        batch = next(iter(step.args[-1].values())).shape
        assert batch[: len(row.sizes)] == row.sizes


def test_what_cannot_be_read_is_refused(capsys):
    assert refused(capsys, "bench plans --rows llama3-8b gnn@h100-8 lama3-8b@h100-8") == (
        "'llama3-8b' is not a row; write llama3-8b:64x4096@h100-64@4\n"
        "  the dimensions of 'gnn' have no logical names; those of llama3-1b, llama3-1b-unrolled, "
        "llama3-8b, llama3-8b-unrolled, llama3-70b, llama3-70b-unrolled, llama3-405b, "
        "llama3-405b-unrolled, mixtral-8x7b, mixtral-8x7b-unrolled, vit-l16 have\n"
        "  no built-in program is called 'lama3-8b'; did you mean llama3-8b or llama3-1b?"
    )
    assert refused(capsys, "bench plans --machines h100-8,b200-8") == (
        "there are no default rows on b200-8; there are on h100-64, h100-8, v5p-64, v6e-64, "
        "v5e-16; for others give --rows"
    )
    assert "no-such-8" in refused(capsys, "bench plans --rows llama3-8b@no-such-8")


def test_a_row_has_every_plan_that_suits_and_ours_at_the_end():
    (row,) = PLANS.read_rows(["mixtral-8x7b@h100-16@2,4"])
    assert list(PLANS.plans_of(row)) == [
        ("parameters only", 2), ("parameters only", 4), ("FSDP", 0), ("HSDP", 0),
        ("FSDP x TP", 2), ("FSDP x TP", 4), ("FSDP x TP x embed", 2), ("FSDP x TP x embed", 4),
        ("FSDP x TP x sequence", 2), ("FSDP x TP x sequence", 4),
        ("FSDP x context", 2), ("FSDP x context", 4), ("FSDP x expert", 0), ("autoshard", 0),
    ]  # fmt: skip
    assert list(PLANS.plans_of(row, refine=True))[-2:] == [
        ("autoshard", 0),
        ("autoshard refined", 0),
    ]


ANSWERS = {
    "parameters only": {"step": 9.0, "peak": 20.0, "fits": "yes", "mesh": "fsdp=2, tensor=4"},
    "FSDP": {"note": "does not apply: 3 over 8"},
    "FSDP x TP": {"step": 2.0, "peak": 90.0, "fits": "no", "mesh": "fsdp=2, tensor=4"},
    "FSDP x TP x embed": {"error": "refused"},
    "FSDP x TP x sequence": {"step": 4.0, "peak": 30.0, "fits": "yes", "mesh": "fsdp=2, tensor=4"},
    "FSDP x context": {"step": 5.0, "peak": 30.0, "fits": "yes", "mesh": "fsdp=2, context=4"},
    "autoshard": {"step": 3.0, "peak": 10.0, "fits": "yes", "mesh": "x=8", "predicted": 2.5},
    "autoshard refined": {"step": 2.0, "peak": 10.0, "fits": "yes", "mesh": "x=8"},
}


def test_ours_is_held_to_the_best_that_fits(monkeypatch, capsys):
    monkeypatch.setattr(
        "autoshard.cli.rows.measure",
        lambda script, row: {"peak_gib": 0.5, **ANSWERS[row["plan"]]},
    )
    words = "bench plans --rows llama3-8b:8x4096@h100-8 --refine 2 --csv plans.csv"
    assert main(words.split()) == 2
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].split() == list(PLANS.COLUMNS)
    assert lines[3] == "    does not apply: 3 over 8"
    assert lines[6] == "    refused"
    assert lines[9].split() == [
        "llama3-8b:8x4096", "h100-8", "autoshard", "x=8", "3", "10", "yes", "2.5", "0.75",
    ]  # fmt: skip
    with Path("plans.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["plan"] for row in rows] == list(ANSWERS)
    assert [row["ratio"] for row in rows] == [""] * 6 + ["0.75", "0.5"]
    assert "peak_gib" not in rows[0]


def test_an_interrupt_keeps_what_there_is(monkeypatch, capsys):
    def measure(script: str, row: Any) -> dict[str, Any]:
        if row["plan"] == "FSDP x TP":
            raise KeyboardInterrupt
        return {"peak_gib": 0.5, **ANSWERS[row["plan"]]}

    monkeypatch.setattr("autoshard.cli.rows.measure", measure)
    words = "bench plans --rows llama3-8b@h100-8 vit-l16@h100-8 --csv plans.csv"
    assert main(words.split()) == 130
    with Path("plans.csv").open() as file:
        assert [row["plan"] for row in csv.DictReader(file)] == ["parameters only", "FSDP"]


def test_nothing_to_compare_with_is_no_ratio():
    assert PLANS.ratio({"step": 2.0}, []) is None
    assert PLANS.ratio({"note": "no plan"}, [{"step": 1.0, "fits": "yes"}]) is None
    assert PLANS.ratio({"step": 2.0}, [{"step": 1.0, "fits": "no"}]) is None


# -- rows as they are measured ---------------------------------------------------------------------

SMALL = "llama3-1b/1:8x32@mi300x-8"


def test_a_plan_that_does_not_divide_says_so():
    row = ROW.measure_row(asked("vit-l16/1:12@mi300x-8", "FSDP"))
    assert row == {
        "note": "does not apply: the rules do not suit these arrays: "
        "[2]['images'] (12, 224, 224, 3): batch of 12 does not divide over fsdp=8, and 1 more"
    }
    row = ROW.measure_row(asked(SMALL, "FSDP x TP", 3))
    assert row == {"note": "an axis of 3 does not divide 8 chips"}


@pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")
@pytest.mark.parametrize(
    ("plan", "degree"),
    sampled([("FSDP x TP", 2), ("autoshard", 0)], lambda one: one[0] == "autoshard"),
)
def test_the_gpus_compiler_gives_seconds(plan, degree):
    row = ROW.measure_row(asked("llama3-1b/1:8x32@h100-2", plan, degree))
    assert row["fits"] == "yes"
    assert 1 < row["peak"] < 8
    assert 0 < row["step"] == pytest.approx(row["compute"] + row["exposed"], rel=0.01)
    assert ("predicted" in row) == (plan == "autoshard")
    assert row["mesh"] == ("x=2" if plan == "autoshard" else "fsdp=1, tensor=2")
