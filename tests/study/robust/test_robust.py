"""`autoshard robust`: ranges from files and words, the record, the table, the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import autoshard
from autoshard.cli.main import main
from autoshard.machine.file import MachineError
from autoshard.machine.load import load, parse
from autoshard.machine.machine import Range, submachine
from autoshard.machine.numbers import ranges_of
from autoshard.program.trace import Program, trace
from autoshard.study.robust.record import Robust
from tests.study.whatif import programs

FILE = """
name = "mine"
overlap = [0.2, 0.5, 0.9]
chips = 8
[compiler]
name = "xla:tpu"
heap_overhead = [0.0, 0.3]
[chip]
name = "accelerator"
memory_bytes = [8e6, 1e8, 2e8]
memory_bandwidth = [1e9, 3e9]
reserve_bytes = 0
vector_flops = 6e9
launch_seconds = 1e-9
matmul_efficiency = 0.8
memory_efficiency = 0.9
[chip.peak_flops]
bfloat16 = [9e9, 9.1e9]
float32 = [4e9, 5e9]
[[network]]
kind = "switch"
name = "inside"
size = 4
chip_bandwidth = [2e7, 2e8, 2e9]
latency_seconds = 1e-6
efficiency = 0.8
[[network]]
kind = "switch"
name = "outside"
chip_bandwidth = 5e7
latency_seconds = [1e-6, 2e-5]
efficiency = 0.8
"""


@pytest.fixture(scope="module")
def program() -> Program:
    fn, args, options = programs.step()
    return trace(fn, *args, name="tests.study.whatif.programs:step", **options)


@pytest.fixture(scope="module")
def found(program: Program) -> Robust:
    return autoshard.robust(program, parse(FILE, where="mine.toml"), mesh={"x": 4, "y": 2})


def test_a_file_has_ranges_and_what_they_are_taken_for():
    machine = parse(FILE, where="mine.toml")
    assert machine.overlap == 0.5
    assert machine.chip.memory_bandwidth == 2e9
    assert machine.chip.peak_flops["float32"] == 4.5e9
    assert machine.ranges == (
        Range("overlap", 0.2, 0.9),
        Range("compiler.heap_overhead", 0.0, 0.3),
        Range("chip.memory_bytes", 8e6, 2e8),
        Range("chip.memory_bandwidth", 1e9, 3e9),
        Range("chip.peak_flops.bfloat16", 9e9, 9.1e9),
        Range("chip.peak_flops.float32", 4e9, 5e9),
        Range("network[0].chip_bandwidth", 2e7, 2e9),
        Range("network[1].latency_seconds", 1e-6, 2e-5),
    )
    hosts = parse(FILE.replace("size = 4", "size = 1"), where="mine.toml")
    assert hosts.ranges[-1] == Range("network[0].latency_seconds", 1e-6, 2e-5)
    assert not any(one.path.startswith("network[1]") for one in submachine(machine, 4).ranges)


def test_faulty_ranges_are_named_all_at_once():
    text = FILE.replace("[1e9, 3e9]", "[3e9, 1e9]").replace("[0.2, 0.5, 0.9]", "[0.2, 1.5]")
    with pytest.raises(MachineError) as fault:
        parse(text.replace("[4e9, 5e9]", "[4e9]"), where="mine.toml")
    assert str(fault.value) == (
        "mine.toml has 3 faults:\n"
        "  * overlap[1] is 1.5; it must be from 0 to 1\n"
        "  * chip.peak_flops.float32 is [4000000000.0]; write [least, most], or what it is taken "
        "for between them\n"
        "  * chip.memory_bandwidth is [3000000000.0, 1000000000.0]; write the least first, and the "
        "most last"
    )
    machine = load("h100-8")
    with pytest.raises(MachineError) as fault:
        ranges_of(machine, {"overlap": (0.6, 0.9), "chip.memory_bandwidth": (0, 4e12)})
    assert str(fault.value).splitlines() == [
        "the ranges are faulty:",
        "  - overlap: 0.6 to 0.9 does not hold its value of 0.5",
        "  - chip.memory_bandwidth: 0 to 4e+12 is more than it may be",
    ]
    with pytest.raises(MachineError, match=r"network\[0\].speed: there is no such number; known"):
        ranges_of(machine, {"network[0].speed": (1, 2)})


def test_a_spread_is_of_what_has_no_range():
    ranges = {one.path: one for one in ranges_of(parse(FILE, where="it"), spread=0.1)}
    assert (ranges["overlap"].low, ranges["overlap"].high) == (0.2, 0.9)
    assert ranges["chip.vector_flops"].low == pytest.approx(5.4e9)
    assert ranges["network[1].chip_bandwidth"].high == pytest.approx(5.5e7)
    assert not any("efficiency" in path for path in ranges)
    assert "chip.transaction_bytes" not in ranges  # it is 0


def test_the_answer_holds_together(found: Robust):
    assert [row.path for row in found.numbers] == [
        "chip.peak_flops.float32",  # that of bfloat16 changes nothing here
        "chip.memory_bandwidth",
        "network[0].chip_bandwidth",
        "network[1].latency_seconds",
        "overlap",
    ]
    assert [row.path for row in found.memory] == ["chip.memory_bytes", "compiler.heap_overhead"]
    for row in found.numbers:
        assert row.low <= row.proven_low <= row.taken <= row.proven_high <= row.high
        assert row.decides or row.stays
        assert 0 <= row.saved <= row.most_saved + 1e-9
    bandwidth = next(row for row in found.numbers if row.path == "network[0].chip_bandwidth")
    assert bandwidth.lost_low is not None
    assert bandwidth.low < bandwidth.lost_low <= bandwidth.proven_low * 1.001
    assert found.to_measure[0].saved > found.tolerance
    taken, least = found.plans[found.taken], found.plans[found.least]
    assert least.most is not None
    assert taken.most is not None
    assert found.least_bound - 1e-9 <= least.most <= taken.most
    assert least.peak_bytes <= 8e6  # it fits the least memory, with the heap at its worst
    assert found.plan.estimate.step_seconds == pytest.approx(least.step_seconds)
    assert taken.best_seconds < taken.step_seconds < taken.worst_seconds
    assert found.limit_hit is None


def test_memory_says_up_to_where_the_plan_fits(program: Program, found: Robust):
    memory, heap = found.memory
    assert memory.fits_to == found.plans[found.taken].peak_bytes
    assert heap.fits_to > heap.high
    assert "at least" in str(found)


def test_the_record_goes_to_a_file_and_comes_back(found: Robust, tmp_path: Path):
    path = tmp_path / "robust.json"
    found.save(str(path))
    again = Robust.from_json(json.loads(path.read_text()))
    assert again.to_json() == found.to_json()
    frame = found.frame()
    assert len(frame) == 7
    assert frame.decides.sum() == len(found.to_measure)
    with pytest.raises(ValueError, match="not what `autoshard robust"):
        Robust.from_json({"schema_version": 0})


def test_the_text_says_what_to_measure(found: Robust):
    text = str(found)
    assert text.startswith("tests.study.whatif.programs:step on mine: 7 numbers with ranges; ")
    assert f"measure first: {found.to_measure[0].name}, which may save " in text
    assert all(len(line) <= 120 for line in text.splitlines()[4:])
    assert "t: for the machine as it is taken; r: of least regret" in text


def test_no_ranges_are_refused(program: Program):
    with pytest.raises(MachineError, match="h100-8 has no ranges; write `memory_bandwidth = "):
        autoshard.robust(program, "h100-8")
    with pytest.raises(MachineError, match="h100-8 has no ranges"):  # no op asks for it
        autoshard.robust(program, "h100-8", ranges={"chip.peak_flops.int8": (1e15, 2e15)})


def test_an_interrupt_leaves_what_is_known(program: Program):
    heard: list[str] = []

    def stop(words: str) -> None:
        heard.append(words)
        if len(heard) == 3:
            raise KeyboardInterrupt

    machine = parse(FILE, where="it")
    some = autoshard.robust(program, machine, mesh={"x": 4, "y": 2}, progress=stop)
    assert some.limit_hit == "interrupted"
    assert len(some.numbers) == 1
    assert some.plans[some.least].most is None
    assert "ended by interrupted" in str(some)


def test_the_command_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    machine, plan, record = (tmp_path / name for name in ("mine.toml", "plan.json", "robust.json"))
    machine.write_text(FILE)
    words: list[Any] = [
        "robust",
        "tests.study.whatif.programs:step",
        "--machine",
        machine,
        "--quiet",
    ]
    words += ["--mesh", "x=4,y=2", "-o", plan, "--record", record, "--csv", tmp_path / "rows.csv"]
    assert main([*map(str, words)]) == 0
    assert "measure first: " in capsys.readouterr().out
    assert (tmp_path / "rows.csv").read_text().startswith("path,name,taken,low,high,")
    assert autoshard.Plan.load(plan).machine == str(machine)
    assert main(["check", str(plan)]) == 0
    html = tmp_path / "plan.html"
    assert main(["report", str(plan), "--robust", str(record), "-o", str(html)]) == 0
    text = html.read_text()
    assert "What is not known of the machine" in text
    assert "bandwidth of inside" in text
    capsys.readouterr()
    assert main(["report", str(plan), "--robust", str(plan), "-o", str(html)]) == 2
    said = capsys.readouterr().err
    assert f"{str(plan)!r} holds a plan, which " in said
    assert "and no answer about ranges" in said
    assert main([*map(str, words[:4]), "--range", "overlap=0.1"]) == 2
    assert "write chip.memory_bandwidth=2.8e12..3.4e12" in capsys.readouterr().err
    assert main(["robust", "tests.study.whatif.programs:step", "--machine", "h100-8"]) == 2
    assert "has no ranges" in capsys.readouterr().err
