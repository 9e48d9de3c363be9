"""What pages say of measured runs is what the page of results says."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (
            "2xv5p-64",
            "of 16 published training runs of decoders on v5p, steps are predicted 11.3 %",
        ),
        ("4xa3-megagpu-8g", "of 93 published training runs of decoders on H100, steps"),
        ("mi300x-8", "no measured run on such chips is known; of 386 published"),
        ("my/own.toml", "no measured run on such chips is known; of 386 published"),
    ],
)
def test_what_is_said_of_a_machine(machine, said):
    assert re.match(re.escape(said), measured_text(machine))
