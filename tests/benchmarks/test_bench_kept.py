"""`benchmarks/kept/policies.py`: policies beside our plan, compiled once, and what they say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autoshard.cli.bench import load_benchmark

FIT, NOT = {"predicted_fits": True, "mesh": "x=8"}, {"predicted_fits": False, "mesh": "x=8"}


def test_the_cheapest_of_each_policy_that_fits_are_compiled_and_all_of_ours():
    answers = {
        "a": {"policy": "full recompute", "predicted": 2.0, **FIT},
        "b": {"policy": "full recompute", "predicted": 1.0, **FIT},
        "c": {"policy": "full recompute", "predicted": 0.5, **NOT},
        "d": {"policy": "save everything", "predicted_fits": False},
        "e": {"policy": "ours", "predicted": 0.9, **NOT},
        "f": {"policy": "ours", "predicted_fits": False, "error": "no plan"},
        "g": {"policy": "mixed", "predicted": 3.0, **NOT},
    }
    part = load_benchmark("kept.row")
    assert part.chosen(answers, 1) == ["e", "g", "b"]
    assert part.chosen(answers, 2) == ["e", "g", "b", "a"]


def test_ours_is_held_to_the_best_policy_that_fits_when_compiled():
    common = {"predicted": 1.0, "predicted_gib": 10.0, "unplanned": 0}
    answers = {
        "a": {"policy": "full recompute", "step": 2.0, "peak_gib": 10.5, "fits": True, **common},
        "b": {"policy": "dots saveable", "step": 1.0, "peak_gib": 13.0, "fits": False, **common},
        "c": {"policy": "ours", "step": 1.5, "peak_gib": 10.0, "fits": True, **common},
    }
    benchmark = load_benchmark("kept.policies")
    rows = benchmark.table(answers, "p", "m")
    assert [row["ratio"] for row in rows] == ["", "", 0.75]
    assert benchmark.summary(rows) == (
        "2 of 3 peaks within 10 %, 1 more than 20 % too low; 0 unplanned collectives; ours below "
        "the best policy in 1 of 1"
    )
    assert benchmark.markdown(rows).splitlines()[4] == (
        "| `p` | m | ours | c | 1 | 1.5 | 10 | 10 | 0 | 0.750 |"
    )
    assert benchmark.meshes_of(8, (4, 3, 8)) == [[8], [2, 4]]


@pytest.mark.long
def test_a_row_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    (tmp_path / "deep.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def layer(x, w):\n"
        "    return x + jax.nn.relu(x @ w), None\n"
        "def loss(w, x):\n"
        "    return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, w)[0] ** 2)\n"
        "def step(w, x):\n"
        "    return w - jax.grad(loss)(w, x)\n"
        "def build():\n"
        "    shapes = (4, 128, 128), (64, 128)\n"
        "    args = tuple(jax.ShapeDtypeStruct(one, jnp.float32) for one in shapes)\n"
        "    return step, args, {'donate_argnums': (0,)}\n"
    )
    word = f"{tmp_path / 'deep.py'}:build@h100-8"
    keep = str(tmp_path / "kept")
    words = ["policies.py", "--rows", word, "--keep", keep, "--mixed", "1", "--time-limit", "10"]
    monkeypatch.setattr(sys, "argv", words)
    benchmark = load_benchmark("kept.policies")
    with pytest.raises(SystemExit) as end:
        benchmark.main()
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "full recompute" in said
    assert "ours" in said
    assert "mixed" in said
    (folder,) = Path(keep).iterdir()
    made = {one.name: one.stat().st_mtime_ns for one in folder.glob("ours-search.json")}
    keys = [json.loads(one.read_text()).get("key") for one in folder.glob("*.answer.json")]
    with pytest.raises(SystemExit):
        benchmark.main()
    assert made
    again = [json.loads(one.read_text()).get("key") for one in folder.glob("*.answer.json")]
    assert sorted(map(str, again)) == sorted(map(str, keys))
