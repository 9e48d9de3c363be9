"""The plan op by op: it adds up to what the plan says, on random plans of every kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from autoshard.machine.improvements import better_machines
from autoshard.machine.load import load
from autoshard.plan.plan import PlanError
from autoshard.show.memory import CLASSES, memory
from autoshard.show.operations import work
from autoshard.show.profile import profile
from autoshard.show.sensitivity import gains
from tests.helpers import MESHES, case, random_plan
from tests.plan.test_evaluate import ARGS, step

MACHINES = ("v5p-8", "h100-8")


def profiles():
    for mesh in MESHES.values():
        for name in MACHINES:
            given = case(step, *ARGS, mesh=mesh, machine=load(name), donate_argnums=0)
            for seed in range(3):
                yield profile(random_plan(given, seed), given.program, load(name))


def test_the_parts_add_up_to_the_plan():
    before = after = 0
    for found in profiles():
        estimate = found.plan.estimate
        assert Counter(one.move for one in found.moves) == Counter(found.plan.moves)
        assert sum(found.op_seconds.values()) == pytest.approx(estimate.compute_seconds)
        assert sum(row.seconds for row in work(found)) == pytest.approx(estimate.compute_seconds)
        before += sum(one.before for one in found.moves)
        after += sum(not one.before for one in found.moves)
    assert before > 10
    assert after > 10


def test_moves_stand_where_their_values_are():
    for found in profiles():
        for one in found.moves:
            op = found.program.ops[one.op]
            if not one.before:
                assert (one.move.scope, one.move.line) == (op.scope, op.line)


def test_classes_of_memory_sum_to_what_is_in_use():
    seen = set()
    for found in profiles():
        now = memory(found)
        total = now.curves.sum(axis=0)
        np.testing.assert_allclose(total, found.evaluation.occupied, rtol=1e-9, atol=1e-3)
        assert round(float(total[now.peak])) == found.plan.estimate.peak_bytes
        assert sum(row.bytes for row in now.holdings) == pytest.approx(
            found.plan.estimate.peak_bytes, abs=len(now.holdings)
        )
        assert (now.curves >= -1e-6).all()
        seen |= {k for k in range(len(CLASSES)) if now.curves[k].max() > 1}
    assert {CLASSES[k] for k in seen} >= {"state", "forward values", "backward values"}


def test_every_better_machine_is_one_and_none_makes_the_plan_slower():
    for name in ("v5p-8", "h100-16", "2xv5e-8"):
        machine = load(name)
        better = list(better_machines(machine))
        assert len({one.change for one in better}) == len({one.part for one in better})
        assert len({one.change for one in better}) == len(better)
        assert all(one.machine != machine for one in better)
    for found in list(profiles())[::5]:
        ranked = gains(found)
        assert [g.step_seconds for g in ranked] == sorted(g.step_seconds for g in ranked)
        assert ranked[-1].step_seconds <= found.plan.estimate.step_seconds * (1 + 1e-9)


def test_other_programs_and_other_prices_are_refused():
    given = case(step, *ARGS, mesh={"x": 8}, machine=load("v5p-8"))
    plan = random_plan(given, 0)
    with pytest.raises(PlanError, match="was made for program 'step'"):
        profile(replace(plan, fingerprint="0"), given.program, load("v5p-8"))
    other = replace(plan, estimate=replace(plan.estimate, peak_bytes=12))
    with pytest.raises(PlanError, match="peak_bytes: 12 in the plan"):
        profile(other, given.program, load("v5p-8"))
    with pytest.raises(PlanError, match="8 devices, but v5p-16 has 16 chips"):
        profile(plan, given.program, load("v5p-16"))
