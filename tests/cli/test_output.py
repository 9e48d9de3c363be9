"""Where output goes: links are followed, a full disk and a full stdout are one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoshard.cli.main import main
from autoshard.plan.plan import Plan
from autoshard.terminal import paragraph

SEARCH = "search steps.py:good --machine v5e-8 --mesh x=8 --quiet --no-baselines -o {}"


def test_a_link_stays_a_link(folder, capsys):
    Path("place").mkdir()
    Path("plan.json").symlink_to("place/real.json")
    assert main(SEARCH.format("plan.json").split()) == 0
    assert Path("plan.json").is_symlink()
    assert Plan.load("place/real.json").machine == "v5e-8"
    assert os.listdir("place") == ["real.json"]
    real = os.path.realpath("place/real.json")
    said = f"autoshard: wrote {real}, which plan.json links to\n"  # in spite of --quiet
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("words", ["machines", "programs"])
def test_a_full_stdout_is_one_line(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autoshard", *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.stderr == ("autoshard: error: cannot write the output: No space left on device\n")
    assert done.returncode == 2


@pytest.mark.parametrize("amount", ["36.9 %", "7.100 ms", "1.25 GiB", "3.35 TB/s", "12.0 TFLOP/s"])
def test_no_line_ends_between_a_number_and_its_unit(amount):
    for before in range(110, 125):
        text = f"{'x' * before} {amount} of it"
        assert any(amount in line for line in paragraph(text).splitlines())
        assert " ".join(paragraph(text).split()) == text
