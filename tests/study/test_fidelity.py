"""Agreement of predicted and compiled figures."""

from __future__ import annotations

import pytest

from autoshard.study.fidelity import draw, summary


def row(plan, step, compiled, *, mesh="8", peak=1.0, compiled_peak=1.0, wire=1.0, unplanned=0):
    return {
        "program": "mlp",
        "machine": "h100-8",
        "mesh": mesh,
        "plan": plan,
        "step": step,
        "compiled": compiled,
        "peak_gib": peak,
        "compiled_gib": compiled_peak,
        "wire_gb": wire,
        "final_gb": 1.0,
        "unplanned": unplanned,
    }


ROWS = [
    row("best", 1.0, 1.25),
    row("FSDP", 2.0, 2.0, peak=0.7),
    row("odd", 3.0, 4.0, peak=1.05, wire=1.5, unplanned=2),
    row("best", 1.0, 3.0, mesh="2x4"),
    row("FSDP", 2.0, 2.0, mesh="2x4"),
]


def test_summary():
    found = summary([*ROWS, {"program": "mlp", "machine": "m", "mesh": "8", "error": "refused"}])
    everything = found.table.loc["all"]
    assert everything["plans"] == 5
    assert everything["step_error"] == pytest.approx(0.2)
    assert everything["peak_near"] == pytest.approx(0.8)
    assert everything["peak_below"] == pytest.approx(0.2)
    assert everything["wire_near"] == pytest.approx(0.8)
    assert everything["unplanned"] == pytest.approx(0.2)
    assert 0 < everything["spearman"] < 1
    assert (found.groups, found.best_kept, found.refused) == (2, 1, 1)
    assert "1 of 2 groups" in str(found)


def test_nothing_compiled():
    found = summary([{"program": "mlp", "machine": "m", "mesh": "8", "error": "refused"}])
    assert (found.groups, found.refused) == (0, 1)


def test_it_is_drawn(tmp_path):
    path = tmp_path / "rows.svg"
    draw(ROWS, path)
    text = path.read_text()
    assert text.startswith("<?xml")
    assert "mlp" in text
