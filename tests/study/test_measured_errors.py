"""What pages say of measured runs is what the page of results says."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.machine.load import presets
from autoshard.study.measured_errors import ALL, BY_CHIP, PRESETS, Measured, measured_text

PAGE = Path(__file__).parents[2] / "docs" / "results" / "measured.md"


def rows(heading):
    text = PAGE.read_text()
    table = text[text.index(f"| {heading} |") :].split("\n\n")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return {
        name: Measured(int(runs), number(error), float(ratio), number(near))
        for name, runs, error, ratio, near in cells
    }


def number(percent):
    return round(float(percent.removesuffix("%")) / 100, 4)


def test_figures_are_those_of_the_page_of_results():
    assert rows("chip") == BY_CHIP
    assert rows("runs")["all"] == ALL
    assert set(PRESETS) <= set(presets())


def test_what_is_said_of_a_machine_are_the_figures_of_its_chip():
    chips = rows("chip")
    for machine, chip in (("2xv5p-64@recipe", "v5p"), ("4xa3-megagpu-8g", "H100")):
        assert measured_text(machine) == (
            f"of {chips[chip].runs} published training runs of decoders on {chip}, steps are "
            f"predicted {100 * chips[chip].error:.1f} % off (median)"
        )


@pytest.mark.parametrize("machine", ["mi300x-8", "my/own.toml"])
def test_a_machine_without_measured_runs_is_said_to_be_so(machine):
    known = rows("runs")["all"]
    assert measured_text(machine) == (
        f"no measured run on such chips is known; of {known.runs} published training runs of "
        f"decoders on others, steps are predicted {100 * known.error:.1f} % off (median)"
    )
