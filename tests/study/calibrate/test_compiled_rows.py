"""Times of collectives from a compiler: the compiler's own, of every size and group asked for."""

from __future__ import annotations

import pandas as pd
import pytest

from autoshard.cli.main import main
from autoshard.compiler.target import why_missing
from autoshard.machine.load import load
from autoshard.study.calibrate import fit
from autoshard.study.calibrate.compiled_rows import compiled_rows
from autoshard.study.calibrate.device import UnmeasuredError
from autoshard.study.calibrate.laws import laws
from autoshard.study.calibrate.table import rows
from tests.helpers import LONG

pytestmark = pytest.mark.skipif(bool(why_missing("gpu")), reason=why_missing("gpu") or "installed")


def test_gathers_and_reductions_within_a_host_have_the_times_of_the_compiler(tmp_path):
    machine = load("h100-64")
    kinds = ("all_gather", "all_reduce")
    found = pd.DataFrame(
        compiled_rows(machine, least_bytes=2**22, most_bytes=2**27, kinds=kinds, cache=tmp_path)
    )
    asked = {
        (kind, group, 2**power) for kind in kinds for group in (2, 4, 8) for power in range(22, 28)
    }
    columns = (found["collective"], found["group_size"], found["bytes"])
    assert set(zip(*columns, strict=True)) == asked
    assert len(found) == len(asked)
    # More bytes take longer, and an all-reduce longer than a gather.
    for _, line in found.groupby(["collective", "group_size"]):
        assert line.sort_values("bytes")["seconds"].is_monotonic_increasing
    wide = found.pivot(index=["group_size", "bytes"], columns="collective", values="seconds")
    assert (wide["all_reduce"] > wide["all_gather"]).all()
    # The preset was fitted to such rows.
    priced, faults = laws(rows(found), machine)
    assert not faults
    off = abs(priced.seconds(machine) / found["seconds"] - 1)
    assert off.median() < 0.15
    assert fit(found, machine).machine.network[0].efficiency == pytest.approx(0.7, rel=0.15)


def test_chips_that_the_compiler_has_no_times_for_are_refused(tmp_path):
    with pytest.raises(UnmeasuredError, match=r"no times of collectives among A100 .* --device"):
        list(compiled_rows(load("a100-8"), most_bytes=2**16, kinds=("all_gather",), cache=tmp_path))


@LONG
def test_a_machine_is_fitted_to_its_compiler(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["calibrate", "--compiled", "--machine", "b200-16", "--table", "times.csv"]
    assert main([*words, "-o", "mine.toml"]) == 0, capsys.readouterr().err
    assert len(pd.read_csv("times.csv")) > 150
    text = (tmp_path / "mine.toml").read_text()
    assert "XLA's own times of collectives: network[0].efficiency" in text
    assert load("mine.toml", chips=16).network[1] == load("b200-16").network[1]
