"""`autoshard calibrate`: tables to machine files, and times of eight fake devices."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from autoshard import load_machine
from autoshard.cli.common import USAGE
from autoshard.cli.main import main
from autoshard.cli.parsers import calibrate as cli_calibrate_parser
from autoshard.machine.load import presets
from autoshard.study.calibrate import fit, read_table
from autoshard.study.calibrate.device import Devices, UnmeasuredError, machine_of
from autoshard.study.calibrate.measure import DTYPES, KINDS
from autoshard.study.calibrate.table import rows
from tests.helpers import LONG

TABLE = """\
kind,m,n,k,dtype,bytes,collective,group_size,seconds,date
matmul,8192,8192,8192,bfloat16,,,,0.0022,2026-01-02
matmul,4096,4096,4096,bfloat16,,,,0.00029,2026-01-01
elementwise,,,,,3e9,,,0.0012,
launch,,,,,,,,0.000004,2026-01-01
launch,,,,,,,,0.000005,2026-01-01
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("times.csv").write_text(TABLE)
    return "times.csv"


def test_a_table_becomes_a_machine_that_searches(table, capsys):
    assert main(["calibrate", table, "--machine", "h100-8", "-o", "mine.toml"]) == 0
    said = capsys.readouterr()
    expected = fit(read_table(table), load_machine("h100-8"))
    assert said.out == f"{expected.report}\n"
    assert said.err == "autoshard: wrote mine.toml\n"
    written = load_machine("mine.toml")
    assert (written.chip, written.network) == (expected.machine.chip, expected.machine.network)
    assert written.name == "h100-8-fitted"
    assert written.sources == (
        *load_machine("h100-8").sources,
        "times.csv (2026-01-01 to 2026-01-02): chip.matmul_efficiency, chip.memory_efficiency, "
        "chip.launch_seconds fitted to it",
    )
    text = Path("mine.toml").read_text()
    launch = expected.machine.chip.launch_seconds
    line = next(line for line in text.split("\n") if line.startswith("launch_seconds"))
    assert re.fullmatch(r"launch_seconds = (\S+) +# fitted to 3 rows, median error [\d.]+ %", line)
    assert float(line.split()[2]) == launch
    assert "latency_seconds = 6e-6          # one NCCL step between hosts; an assumption\n" in text
    search = ["search", "mlp:tiny", "--machine", "mine.toml", "--time-limit", "10", "--quiet"]
    assert main([*search, "--mesh", "data=8", "-o", "plan.json", "--no-baselines"]) == 0
    assert json.loads(Path("plan.json").read_text())["machine"] == "mine.toml"


def test_the_table_in_the_guide_tells_of_every_parameter_of_a_host(tmp_path):
    page = (Path(__file__).parents[2] / "docs/guide/calibrate.md").read_text()
    block = re.findall(r"^```json\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "times.jsonl").write_text(block[0])
    found = fit(read_table(tmp_path / "times.jsonl"), load_machine("h100-8"))
    told = {entry.name for entry in found.report.parameters if entry.fitted}
    assert told == {entry.name for entry in found.report.parameters}
    assert all(entry.errors_after.median < 0.1 for entry in found.report.parameters)


def test_a_fitted_machine_is_fitted_again(table, capsys):
    assert main(["calibrate", table, "--machine", "h100-8", "-o", "one.toml"]) == 0
    assert main(["calibrate", table, "--machine", "one.toml", "-o", "two.toml"]) == 0
    one, two = load_machine("one.toml"), load_machine("two.toml")
    assert two.name == "h100-8-fitted"
    assert two.chip.launch_seconds == pytest.approx(one.chip.launch_seconds, rel=1e-3)
    assert len(two.sources) == len(one.sources) + 1


def test_the_report_as_json(table, capsys):
    assert main(["calibrate", table, "--machine", "h100-8", "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    by_name = {entry["name"]: entry for entry in report["parameters"]}
    assert by_name["chip.launch_seconds"]["rows"] == 3  # and the smaller matmul
    assert by_name["overlap"]["median_error_after"] is None
    assert said.err == ""


def test_files_are_not_replaced_unasked(table, capsys):
    words = ["calibrate", table, "--machine", "h100-8", "-o", "mine.toml"]
    Path("mine.toml").write_text("mine")
    assert main(words) == USAGE
    assert capsys.readouterr().err == (
        "autoshard: error: 'mine.toml' is there already, and is not a machine file; name another "
        "file, or give --overwrite\n"
    )
    assert Path("mine.toml").read_text() == "mine"
    assert main([*words, "--overwrite"]) == 0
    first = Path("mine.toml").stat()
    assert main(words) == 0  # it is a machine file now
    assert Path("mine.toml").stat().st_mtime_ns == first.st_mtime_ns
    assert capsys.readouterr().err == "autoshard: wrote mine.toml\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "give a table of times, or --device to measure one here"),
        (["times.csv", "--device"], "give a table of times, or --device to measure one here"),
        (["--compiled", "--device"], "give a table of times, or --device to measure one here"),
        (["times.csv"], "times are fitted to a machine; name it with --machine"),
        (["--compiled"], "times are fitted to a machine; name it with --machine"),
        (
            ["times.csv", "--machine", "h100-8", "--table", "x.csv"],
            "--table is where --device and --compiled write their times; there is neither",
        ),
        (["none.csv", "--machine", "h100-8"], "cannot read the table 'none.csv': No such file"),
        (["times.csv", "--machine", "h1000-8"], "no machine 'h1000-8'"),
        (["times.csv", "--machine", "h100-8", "-o", "no/x.toml"], "cannot write 'no/x.toml'"),
        (["--device", "--kinds", "matmul,sort"], "'sort' is none of"),
        (["--device", "--largest", "much"], "'much' is not a size"),
    ],
)
def test_what_cannot_be_done_is_said(table, capsys, words, complaint):
    assert main(["calibrate", *words]) == USAGE
    assert complaint in capsys.readouterr().err


def test_faults_of_a_table_are_named(table, capsys):
    Path(table).write_text(TABLE.replace("4096,4096,4096", "4096,,4096").replace("3e9", "many"))
    assert main(["calibrate", table, "--machine", "h100-8", "-o", "mine.toml"]) == USAGE
    assert capsys.readouterr().err == (
        "autoshard: error: the table 'times.csv' has 2 faults:\n"
        "  * line 3, column n is empty; write a whole number from 1 on\n"
        "  * line 4, column bytes: 'many'; write a number from 0 on\n"
    )
    assert not Path("mine.toml").exists()


@LONG
def test_eight_devices_are_measured_and_searched(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    words = ["calibrate", "--device", "--platform", "cpu", "--largest", "16KiB"]
    words += ["--kinds", "matmul,elementwise,collective", "--dtypes", "float32"]
    assert main([*words, "--table", "times.csv", "-o", "cpu.toml"]) == 0, capsys.readouterr().err
    measured = read_table("times.csv")
    kinds = {row.kind for row in rows(measured)}
    assert kinds == {"matmul", "elementwise", "collective"}
    moved = set(measured["collective"]) - {""}
    assert moved <= {"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                     "collective_permute"}  # fmt: skip
    assert set(measured["device"]) == {"cpu"}
    machine = load_machine("cpu.toml")
    assert (machine.name, machine.chips, machine.overlap) == ("cpu-8-fitted", 8, 0.0)
    assert set(machine.chip.peak_flops) == {"float32"}
    assert machine.sources[0] == "measured on 8 x cpu"
    text = Path("cpu.toml").read_text()
    assert "# the best matmul measured" in text
    assert "# not measured: nothing is taken to hide" in text
    search = ["search", "mlp:tiny", "--machine", "cpu.toml", "--time-limit", "10", "--quiet"]
    assert main([*search, "--mesh", "data=8", "--no-baselines"]) == 0


def test_a_machine_needs_a_matmul_and_a_copy():
    table = pd.DataFrame([{"kind": "launch", "seconds": 1e-6}])
    with pytest.raises(UnmeasuredError) as caught:
        machine_of(Devices("Some NPU", "npu", 4, 1e9), rows(table))
    assert str(caught.value) == (
        "a machine of Some NPU needs rows of kind matmul and elementwise, and none was measured; "
        "allow larger arrays and more runs, or name a machine to start from"
    )


def test_one_device_is_a_machine_too():
    table = pd.DataFrame(
        [
            {"kind": "matmul", "m": 64, "n": 64, "k": 64, "dtype": "float32", "seconds": 1e-5},
            {"kind": "elementwise", "bytes": 1e6, "seconds": 1e-4},
        ]
    )
    machine, notes = machine_of(Devices("cpu", "cpu", 1, 1e9), rows(table))
    assert machine.chips == 1
    assert machine.chip.peak_flops["float32"] == pytest.approx(2 * 64**3 / 1e-5, rel=1e-3)
    assert machine.chip.memory_bandwidth == pytest.approx(1e10)
    assert notes["network[0].chip_bandwidth"] == "not measured (one device): as memory"


@pytest.mark.parametrize(
    ("kind", "preset"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-8"),
        ("NVIDIA H200", "h200-8"),
        ("NVIDIA A100-SXM4-80GB", "a100-8"),
        ("NVIDIA GB200", "gb200-nvl72-8"),
        ("NVIDIA B200", "b200-8"),
        ("AMD Instinct MI300X", "mi300x-8"),
        ("TPU v4", "v4-8"),
        ("TPU v5 lite", "v5e-8"),
        ("TPU v5p", "v5p-8"),
        ("TPU v5", "v5p-8"),
        ("TPU v6 lite", "v6e-8"),
        ("TPU7x", "v7x-8"),
        ("cpu", None),
        ("NVIDIA T4", None),
    ],
)
def test_known_devices_start_from_their_preset(kind, preset):
    assert Devices(kind, "gpu", 8, 1e9).preset == preset
    if preset is not None:
        assert preset.rpartition("-")[0] in presets()
        assert load_machine(preset).chips == 8


def test_the_words_are_those_of_the_measurement():
    assert cli_calibrate_parser.KINDS == KINDS
    assert cli_calibrate_parser.DTYPES == DTYPES


def test_the_command_line_keeps_its_hands_off_accelerators():
    code = (
        "import sys, autoshard.cli.calibrate, autoshard.study.calibrate.device\n"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
