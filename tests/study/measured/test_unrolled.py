"""Sums of gradients of layers that are in no loop."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.cost.collective import MeshTopology
from autoshard.models.decoder import parameter_count
from autoshard.study.measured import Run, answer, question
from autoshard.study.measured.question import Question
from autoshard.study.measured.unrolled import joined_seconds


def run(**cells: Any) -> Run:
    given = {"id": "one", "model": "mpt-125m", "chip": "H100", "chips": 16, "batch": 64, "dp": 2}
    given |= {"sequence": 1024, "precision": "bf16", "remat": "full", "fsdp": 8}
    return Run(**{**given, "framework": "MaxText", "settings": "scan_layers=false", **cells})


def topology(one: Question) -> MeshTopology:
    return MeshTopology(one.machine, tuple(one.rules.mesh.values()))


def test_gradients_of_a_shard_are_summed_over_the_copies():
    one = question(run())
    places = topology(one)
    sent = 2.0 * parameter_count(one.decoder) / 8
    expected = places.collective_seconds("all_reduce", (0,), sent)
    assert joined_seconds(one, places) == pytest.approx(expected)
    # tensor parallelism cuts them, too
    cut = question(run(fsdp=4, tp=2))
    assert joined_seconds(cut, topology(cut)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "cells",
    [
        {"settings": ""},
        {"framework": "Megatron-LM"},
        {"chip": "v5p"},
        {"dp": 1, "fsdp": 16},
    ],
)
def test_others_wait_for_none(cells: dict[str, Any]):
    one = question(run(**cells))
    assert joined_seconds(one, topology(one)) == 0.0


def test_a_step_has_them_beside_all_else():
    some, other = (answer(run(settings=words)) for words in ("scan_layers=false", ""))
    assert some.predicted_seconds is not None
    assert other.predicted_seconds is not None
    one = question(run())
    more = joined_seconds(one, topology(one))
    assert some.predicted_seconds == pytest.approx(other.predicted_seconds + more)
