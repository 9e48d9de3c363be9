"""Faults of XLA's partitioner are asked for in a process that may end."""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from autoshard.compiler import partitioner
from autoshard.compiler.partitioner import ask_fault
from autoshard.compiler.request import versions
from autoshard.lower.partitioner import FAULTS, CutOp
from tests.program.rules.equations import equations_of

BY_NAME = {fault.name.removeprefix("partitioner."): fault for fault in FAULTS}


@pytest.mark.parametrize(
    ("name", "claimed", "detail"),
    [
        ("batch-groups-cut-twice-abort", "aborts", ""),
        ("batch-groups-cut-twice-abort", "wrong", "its probe shows: aborts"),
        ("batch-groups-summed-twice", "wrong", ""),
    ],
)
def test_an_abort_ends_the_child_alone(name: str, claimed: str, detail: str) -> None:
    found = ask_fault(replace(BY_NAME[name], shows=claimed))
    assert found.detail == detail
    assert found.status == ("broken" if detail else "holds")
    assert found.version.startswith("jaxlib ")


@pytest.mark.parametrize(
    ("seen", "collectives", "status"),
    [
        (True, ["all-gather"], "holds"),
        (True, [], "broken"),
        (False, ["all-gather"], "broken"),
        (False, [], "lost"),
    ],
)
def test_a_fault_that_a_release_has_lost_is_not_broken(
    monkeypatch: pytest.MonkeyPatch, seen: bool, collectives: list[str], status: str
) -> None:
    installed = f"jaxlib {versions()['jaxlib']}"
    fault = replace(BY_NAME["fourier-transforms-gathered"], seen=(installed,) if seen else ())
    others = (replace(fault, seen=(installed,)),)
    monkeypatch.setattr(partitioner, "FAULTS", others)
    answer = {"equal": True, "collectives": collectives}
    monkeypatch.setattr(partitioner, "ask", lambda *args, **options: answer)
    assert ask_fault(fault).status == status


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"batch-groups-cut-twice-abort"}))
def test_what_each_probe_shows(name: str) -> None:
    """Here, on the devices of the tests; what aborts is left to the child."""
    fault, installed = BY_NAME[name], f"jaxlib {versions()['jaxlib']}"
    if not any(installed in other.seen for other in FAULTS):
        pytest.skip(f"no fault was looked for in {installed}")
    equal, collectives = partitioner.run_cut(fault.probe)
    found = "wrong" if not equal else "sends" if collectives else "nothing"
    assert found == (fault.shows if installed in fault.seen else "nothing")


def test_a_cut_that_the_partitioner_can_do_shows_nothing() -> None:
    plain = CutOp(lambda x: x * 2, ((8, 4),), {"x": 2, "y": 2}, (("x", "y"),), ("x", "y"))
    assert partitioner.run_cut(plain) == (True, [])


def test_every_fault_covers_its_own_probe_and_says_where_it_is_from() -> None:
    for fault in FAULTS:
        shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in fault.probe.shapes]
        assert any(map(fault.covers, equations_of(fault.probe.op, *shapes))), fault.name
        assert fault.claim.endswith("."), fault.name
        assert fault.source.endswith(".cc") or fault.source.startswith("https://"), fault.name
        assert len(fault.probe.reads) == len(fault.probe.shapes), fault.name


def test_a_probe_without_an_answer_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioner, "TIME_LIMIT", 0.01)
    outcome = ask_fault(FAULTS[0])
    assert (outcome.status, outcome.detail) == ("broken", "its probe shows: no answer in 0.01 s")
