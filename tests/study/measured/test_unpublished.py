"""Meshes that sources do not say are those that frameworks take by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.machine.load import load
from autoshard.study.measured.table import Run
from autoshard.study.measured.unpublished import data_parallel_mesh


@pytest.mark.parametrize(
    ("machine", "cells", "mesh"),
    [
        ("h100-256", {"framework": "MaxText"}, (32, 8)),
        ("2xv5p-64", {"framework": "MaxText", "chip": "v5p"}, (2, 64)),
        ("v5p-64", {"framework": "MaxText", "chip": "v5p"}, (1, 64)),
        ("h100-256", {"framework": "AXLearn"}, (32, 8)),
        ("h100-256", {"framework": "AXLearn", "model": "llama2-70b"}, (2, 128)),
        ("v5p-256", {"framework": "AXLearn", "chip": "v5p"}, (32, 8)),
        ("v5p-256", {"framework": "AXLearn", "chip": "v5p", "model": "llama2-70b"}, (1, 256)),
        ("h100-64", {"framework": "AXLearn", "model": "llama2-70b"}, (1, 64)),
        ("h100-256", {"framework": "PyTorch FSDP"}, (1, 256)),
    ],
)
def test_a_mesh_is_that_of_the_framework(
    machine: str, cells: dict[str, Any], mesh: tuple[int, int]
) -> None:
    there = load(machine)
    cells = {"id": "a", "model": "llama2-7b", "chip": "H100", **cells}
    sizes, note = data_parallel_mesh(Run(chips=there.chips, **cells), there, there.chips)
    assert (sizes["replica"], sizes["fsdp"]) == mesh
    assert note.startswith("taken to be FSDP over")
    assert ("copies over the others" in note) == (mesh[0] > 1)


def test_model_axes_leave_fewer_data_parallel_ranks() -> None:
    run = Run(id="a", model="llama2-7b", chip="H100", chips=64, framework="MaxText", tp=4)
    assert data_parallel_mesh(run, load("h100-64"), 16)[0] == {"replica": 8, "fsdp": 2}
