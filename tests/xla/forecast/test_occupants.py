"""What the library of products takes beside its arrays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.machine.load import load
from autoshard.xla.forecast.occupants import _workspace_bytes


@pytest.mark.parametrize(
    ("machine", "whole", "lost"),
    [("h100-8", 2**25, 2**22), ("b200-8", 2**25, 2**22), ("a100-8", 2**22, 2**22)],
)
def test_a_workspace_is_that_of_ampere_at_most_without_blackwells(machine, whole, lost) -> None:
    chip = load(machine).chip
    known = replace(chip.compiler, without=frozenset[str]())
    assert _workspace_bytes(replace(chip, compiler=known)) == whole
    denied = replace(known, without=frozenset({"gpu.workspace-of-blackwell"}))
    assert _workspace_bytes(replace(chip, compiler=denied)) == lost
