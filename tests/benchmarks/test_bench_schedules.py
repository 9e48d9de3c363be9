"""`autoshard bench schedules`: its rows, its summary, what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from autoshard.cli.main import main

SMALL = {
    "p": 2, "m": 3, "F": 1, "B": 1, "W": 1, "mem_F": 2, "mem_B": -1, "mem_W": -1,
    "mem_limits": {"1f1b": 4, "2x": 8, "none": None},
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vee = {"S": 4, "placement": [0, 1, 1, 0], "F": 0.5, "B": 0.5, "W": 0.5, "mem_F": 1}
    vee |= {"mem_B": -0.5, "mem_W": -0.5}
    instances = [SMALL | {"name": "small-v1"}, SMALL | vee | {"name": "small-v2V"}]
    Path("instances.json").write_text(json.dumps(instances))
    key = {"limit": "1f1b", "objective": "makespan"}
    peers = [
        {"instance": "small-v1", **key, "value": 10, "peer": "ours", "bound": 10},
        {"instance": "small-v2V", **key, "value": 12, "peer": "theirs", "bound": 9},
    ]
    Path("peers.json").write_text(json.dumps(peers))
    Path("free.json").write_text(json.dumps([{"problem": "small", **key, "value": 11}]))


def test_rows_and_summary(files, capsys):
    words = ["--peers", "peers.json", "--peers-by-problem", "free.json", "--csv", "rows.csv"]
    limits = ["--limits", "1f1b,none", "--time-limit", "60", "--threads", "1"]
    assert main(["bench", "schedules", "instances.json", *words, *limits]) == 0
    out = capsys.readouterr().out
    rows = list(csv.DictReader(Path("rows.csv").read_text().splitlines()))
    assert len(rows) == 8
    assert {row["status"] for row in rows} == {"optimal"}
    first = rows[0]
    assert (first["ours"], first["bound"], first["peer"]) == ("10", "10", "10")
    assert float(rows[4]["change"]) == float(rows[4]["ours"]) / 12 - 1
    assert "8 rows, 8 with a schedule, 8 proven optimal" in out
    assert "beside the best peer: 1 better, 1 equal, 0 worse of 2" in out
    assert (
        "limit 1f1b, where the peer does not meet its bound: 1 better, 0 equal, 0 worse of 1" in out
    )
    assert "placement free: 1 better, 0 equal, 0 worse of 1" in out


def test_refusals(files, capsys):
    for words, message in (
        ([], "name a file of instances, or give --large"),
        (["gone.json"], "cannot read the list 'gone.json'"),
        (["free.json", "--peers", "gone.json"], "cannot read the list 'gone.json'"),
    ):
        assert main(["bench", "schedules", *words]) == 2
        assert message in capsys.readouterr().err
    Path("odd.json").write_text("{}")
    assert main(["bench", "schedules", "odd.json"]) == 2
    assert "'odd.json' is not a list of objects" in capsys.readouterr().err
