"""Copies that a compiler makes are told from a tenth of the step on, with where and what to do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import autoshard
from autoshard.machine.compiler import DEFAULTS, of_release
from autoshard.models import build
from autoshard.plan import made_copies as module
from autoshard.plan.evaluate import compute_seconds
from autoshard.plan.made_copies import copies_note, made_copies
from autoshard.search.assemble import prices_of


@pytest.fixture(scope="module")
def decoding():
    step = build("llama3-1b-decode", layers=2, batch=8, sequence=2048)
    program = autoshard.trace(step.fn, *step.args, **step.options)
    machine = autoshard.load_machine("h100-8")
    # Later ones write no slices of these stacks.
    compiler = of_release(DEFAULTS["xla:gpu"], "0.10.2")
    machine = replace(machine, chip=replace(machine.chip, compiler=compiler))
    plan = autoshard.search(program, machine, mesh={"x": 8}, baselines=False)
    return plan, prices_of(plan, program, machine)


def test_a_stacked_cache_is_told(decoding):
    plan, prices = decoding
    found = made_copies(prices, plan.decisions)
    assert found.slices
    assert found.orders
    assert not set(found.slices) & set(found.orders)
    seconds = {op.index: took for op, _, took in compute_seconds(prices, plan.decisions)}
    for copies in (found.slices, found.orders):
        assert all(0 < took <= seconds[op] for op, took in copies.items())
    share = sum((*found.slices.values(), *found.orders.values())) / plan.estimate.step_seconds
    (note,) = (one for one in plan.notes if one.startswith("copies that the compiler makes take"))
    assert f"take {100 * share:.0f} % of the step: slices of stacks are written" in note
    assert "most at training.py:" in note


def test_a_tenth_is_not_told(decoding, monkeypatch):
    plan, prices = decoding
    tenth = module.MadeCopies({0: 0.0625}, {1: 0.0625})
    monkeypatch.setattr(module, "made_copies", lambda *_: tenth)
    assert copies_note(prices, plan.decisions, 1.25) == ""
    assert "(6 %" in copies_note(prices, plan.decisions, 1.0)
    assert copies_note(SimpleNamespace(), plan.decisions, 0.0) == ""
