"""The report of a sweep: read back from JSON and CSV alike, whole, and with the sweep's figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.cli.main import main
from autoshard.show.sweep.file import SweepFileError, is_sweep, read_sweep
from autoshard.show.sweep.page import sweep_page
from autoshard.show.sweep.verdict import sweep_verdict
from autoshard.study.whatif.prices import ChipPrice, Prices
from autoshard.study.whatif.row import Row
from autoshard.study.whatif.table import WhatIf
from tests.show.reading import read
from tests.show.test_page import HOSTILE, titles

STEPS = {("v5p", 16, 32): 4.0, ("v5p", 32, 32): 2.0, ("h100", 16, 32): 2.5, ("h100", 32, 32): 1.0,
         ("v5p", 16, 64): None, ("v5p", 32, 64): 3.9, ("h100", 16, 64): None,
         ("h100", 32, 64): 2.1}  # fmt: skip


def row(chip: str, chips: int, batch: int, step: float | None) -> Row:
    asked = Row(
        sizes={"batch": batch, "mode": "train"},
        chip=chip,
        chips=chips,
        machine=f"{chip}-{chips}",
        limit_bytes=8e10,
        status="infeasible" if step is None else "feasible",
        why="40.0 GiB are alive at once" if step is None else None,
        key="0123",
    )
    if step is None:
        return asked
    rate = batch * 4096 / step
    return replace(
        asked, mesh="x=4, y=8", layouts="[d@x, f@y]", step_seconds=step, lower_seconds=0.9 * step,
        upper_seconds=1.3 * step, bound_seconds=0.99 * step, gap=0.01, compute_seconds=step,
        collective_seconds=0.3 * step, peak_bytes=int(6e10), tokens=batch * 4096,
        tokens_per_second=rate, tokens_per_second_per_chip=rate / chips, utilisation=0.45,
        binds="compute", saved_seconds={"compute": 0.08 * step, "memory bandwidth": 0.01 * step},
        seconds_per_gib=0.001,
    )  # fmt: skip


def sweep(**changed) -> WhatIf:
    rows = tuple(row(*asked, step) for asked, step in STEPS.items())
    prices = Prices((("v5p", ChipPrice(4.0, 400.0)), ("h100", ChipPrice(9.0, 900.0))), "EUR")
    given = WhatIf("llama", rows, "tokens-per-dollar", prices, len(rows), train_tokens=1e12)
    return replace(given, **changed)


def test_a_sweep_is_read_back_from_both_files():
    given = sweep()
    again = read_sweep(json.dumps(given.to_json()))
    assert again == given
    rows = read_sweep(given.to_csv())
    assert [str(one) for one in rows.rows] == [str(one) for one in given.rows]
    assert [one.saved_seconds for one in rows.rows] == [one.saved_seconds for one in given.rows]
    assert rows.rows[0] == given.rows[0]
    assert rows.prices.of("v5p").chip_hour == pytest.approx(4.0)
    assert rows.prices.of("h100").watts == pytest.approx(900.0)
    assert rows.train_tokens == pytest.approx(1e12)


def test_the_first_screen_and_the_tables():
    found = read(sweep_page(sweep()))
    text = found.all_text()
    assert (
        "6 of 8 rows have a plan; best by tokens-per-dollar: v5p-32 batch=64 mode=train, 3.900 s "
        "a step, 0.529 EUR a million tokens, within 1.00 % of the best, bound by compute." in text
    )
    for said in ("6 of 8 rows", "the fewest chips: h100-16 batch=32", "10 % more compute",
                 "saves 8.0 % of the step", "the training run takes 172.2 days"):  # fmt: skip
        assert said in text
    assert titles(found) == [
        "pareto", "rows", "binds", "clusters", "sizes", "even", "unfit", "versions"
    ]  # fmt: skip
    best, clusters, sizes, even, unfit = found.tables
    assert best[0][:8] == ["front", "machine", "chips", "batch", "mode", "step", "bound", "gap"]
    assert best[1][:6] == ["●", "v5p-32", "32", "64", "train", "3.900 s"]
    assert {"EUR/Mtok", "J/token", "days", "run, EUR"} <= set(best[0])
    assert len(best) == 7
    assert ["v5p", "batch 64, mode train", "74.5 GiB", "32", "v5p-32"] in clusters
    assert ["v5p-16", "mode train", "74.5 GiB", "batch", "32", ""] in sizes
    assert [line[1] for line in even[1:]] == ["v5p", "h100"]
    assert [line[0] for line in unfit[1:]] == ["v5p-16", "h100-16"]
    assert found.tags.count("svg") == 2


def test_the_fastest_row_is_advised_another_size_that_does_more_work():
    rows = tuple(row(*asked, step) for asked, step in STEPS.items())
    rows = tuple(replace(one, machine="h100-32") if one.chips == 32 else one for one in rows)
    rows += (row("h100", 32, 128, 3.2), row("h100", 32, 256, 9.0))
    quick = replace(sweep(), rows=rows, objective="step", latency=3.5)
    told = sweep_verdict(quick).answers[-1]
    assert told.said == "batch=128"
    assert told.detail.startswith("1.25 times the tokens/s of a chip, 3.200 s a step; of the ")
    assert sweep_verdict(replace(quick, latency=1.5)).answers[-1].said == "10 % more compute"
    unit = replace(rows[3], saved_seconds={"the matrix unit": 0.1})
    assert sweep_verdict(replace(quick, rows=(unit,))).answers[-1].said == (
        "the matrix unit 10 % faster"
    )


def test_without_prices_tokens_or_plans():
    bare = replace(sweep(), prices=Prices(), objective="step", train_tokens=None)
    text = read(sweep_page(bare)).all_text()
    assert "chip-hours for a million tokens" in text
    assert "among chips of one kind, for want of prices" in text
    untold = tuple(
        replace(one, tokens=None, tokens_per_second=None, tokens_per_second_per_chip=None)
        for one in bare.rows
    )
    assert "steps/s" in read(sweep_page(replace(bare, rows=untold))).all_text()
    none = replace(bare, rows=tuple(one for one in bare.rows if not one.fits))
    found = read(sweep_page(none))
    assert "0 of 2 rows have a plan: none can be recommended." in found.all_text()
    assert titles(found) == ["unfit", "versions"]


def test_names_of_sweeps_cannot_break_out():
    rows = tuple(
        replace(one, chip=HOSTILE, machine=HOSTILE, why=HOSTILE, mesh=HOSTILE, binds=HOSTILE,
                saved_seconds={HOSTILE: 1.0}, sizes={"batch": HOSTILE})
        for one in sweep().rows
    )  # fmt: skip
    found = read(sweep_page(sweep(rows=rows, program=HOSTILE)))
    assert found.tags.count("script") == 1
    assert found.all_text().count(HOSTILE) >= 10


def test_the_command(tmp_path: Path, capsys):
    files = {"sweep.json": json.dumps(sweep().to_json()), "sweep.csv": sweep().to_csv()}
    for name, text in files.items():
        assert is_sweep(text)
        (tmp_path / name).write_text(text)
        out = tmp_path / f"{name}.html"
        assert main(["report", str(tmp_path / name), "-o", str(out)]) == 0
        assert "h100-32" in read(out.read_text()).all_text()
    capsys.readouterr()
    place = str(tmp_path / "sweep.json")
    assert main(["report", place, "-o", str(tmp_path / "a"), "--machine", "v5p-16"]) == 2
    assert "is a sweep, of which -o makes a page; --machine is about a plan for one mesh" in (
        capsys.readouterr().err
    )


def test_what_is_no_sweep_is_refused():
    assert not is_sweep('{"schema_version": 1, "mesh": {}}')
    written = sweep().to_json()
    with pytest.raises(SweepFileError, match="has schema version 9, this autoshard reads 1"):
        read_sweep(json.dumps({**written, "schema_version": 9}))
    part = {k: v for k, v in written["rows"][0].items() if k not in ("machine", "step_seconds")}
    with pytest.raises(SweepFileError, match="its rows lack machine, step_seconds"):
        read_sweep(json.dumps({**written, "rows": [part]}))
    with pytest.raises(SweepFileError, match="the sweep has no rows"):
        read_sweep(json.dumps({**written, "rows": []}))
