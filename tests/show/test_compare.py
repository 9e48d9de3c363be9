"""Two plans on one page: which is better by what, and where they differ."""

from __future__ import annotations

import math
from dataclasses import replace

from autoshard.cli.main import main
from autoshard.plan.records import Work
from autoshard.show.compare import compared
from tests.plan.text.test_page import plan as toy
from tests.show.reading import read


def test_what_differs_stands_side_by_side():
    first = toy()
    quicker = replace(first.estimate, step_seconds=0.009, peak_bytes=2**30)
    second = toy(estimate=quicker, moves=first.moves[:1], machine="v5p-8")
    found = read(compared(first, second))
    text = found.all_text()
    assert "B is faster, by 25.0 %; B takes less memory, by 66.7 %." in text
    figures = {row[0]: row[1:] for rows in found.tables for row in rows}
    assert figures["step"] == ["12.00 ms", "9.000 ms", "-3.000 ms"]
    assert figures["peak"] == ["3.00 GiB", "1.00 GiB", "-2.00 GiB"]
    assert figures["machine"] == ["v5e-8", "v5p-8"]
    assert figures["all_gather@data"] == ["400.0 us", "200.0 us", "-200.0 us"]
    assert "None: all inputs and outputs lie alike." in text


def test_tokens_a_second_and_mfu_where_both_know_them():
    first = toy(work=Work(tokens=24_000, peak_seconds=0.006))
    chips = math.prod(first.mesh.sizes)
    quicker = replace(first.estimate, step_seconds=0.008)
    found = read(compared(first, toy(estimate=quicker, work=first.work)))
    figures = {row[0]: row[1:] for rows in found.tables for row in rows}
    assert figures["tokens/s"] == ["2,000,000", "3,000,000", "+1,000,000"]
    each = [f"{rate // chips:,}" for rate in (2_000_000, 3_000_000, 1_000_000)]
    assert figures["tokens/s of a chip"] == [each[0], each[1], f"+{each[2]}"]
    assert figures["MFU"] == ["50.0 %", "75.0 %", "+25.0 %"]
    assert "B: 3,000,000 tokens/s" in found.all_text()
    assert "tokens/s" not in read(compared(first, toy(work=None))).all_text().split("B - A")[-1]


def test_plans_on_other_numbers_of_chips_are_held_to_chip_seconds():
    first = toy()
    chips = math.prod(first.mesh.sizes)
    wide = replace(first.mesh, sizes=(4 * first.mesh.sizes[0], *first.mesh.sizes[1:]))
    quicker = replace(first.estimate, step_seconds=0.004)
    found = read(compared(first, toy(estimate=quicker, mesh=wide, machine="v5e-32")))
    figures = {row[0]: row[1:] for rows in found.tables for row in rows}
    assert figures["chips"] == [f"{chips}", f"{4 * chips}"]
    said = found.all_text()
    assert "B is 3.00 times as fast; " in said
    assert f"12.00 ms and 4.000 ms a step, on {chips} and {4 * chips} chips: 96.00 ms and" in said
    assert "A takes less of them, by 25.0 %" in said


def test_a_layout_that_differs_is_listed():
    first = toy()
    specs = {side: dict(one) for side, one in first.specs.items()}
    specs["inputs"]["[1]"] = type(specs["inputs"]["[1]"])()
    found = read(compared(first, toy(specs=specs)))
    assert found.tables[-1][1:] == [["input [1]", "i32[8@data, 16]", "i32[8, 16]"]]
    assert "A takes the same time as B" in found.all_text()


def test_the_command_writes_it_and_refuses_more(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    toy().save("a.json")
    toy(program="other").save("b.json")
    assert main(["report", "a.json", "b.json", "-o", "both.html", "--json"]) == 0
    assert capsys.readouterr().out == '{"wrote": {"output": "both.html"}, "left_out": []}\n'
    assert "Two plans: toy and other" in (tmp_path / "both.html").read_text()
    assert main(["report", "a.json", "b.json", "-o", "both.html", "--trace", "t.json"]) == 2
    assert "--trace is about a plan for one mesh" in capsys.readouterr().err
