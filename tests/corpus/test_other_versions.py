"""Plans that other versions of JAX made: read, priced and lowered here, or the difference is named.

`versions` has random plans of a built-in of each architecture in small, on the toy machine, by the
oldest and by the newest version of JAX that is tested.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from autoshard import models
from autoshard.cost.step_prices import step_prices
from autoshard.lower.spmd import lower
from autoshard.lower.verify import verify_collectives
from autoshard.plan.evaluate import evaluate
from autoshard.plan.plan import Plan, PlanError
from autoshard.plan.same_program import for_program
from autoshard.program.trace import Program, trace
from autoshard.xla import analyse
from tests.helpers import LONG, toy_machine
from tests.newer_jax import TRACED_OTHERWISE, traced_otherwise

FOLDER = Path(__file__).with_name("versions")
VERSIONS = "0.10.2", "0.12.0.1"
NAMES = sorted({file.name.partition("-0.1")[0] for file in FOLDER.iterdir()})
EVERY = [
    pytest.param(name, version, marks=LONG if name == "unet" else ())
    for name in NAMES
    for version in VERSIONS
]


def made_by(version: str, name: str) -> Plan:
    data = (FOLDER / f"{name}-{version}.json.gz").read_bytes()
    return Plan.from_json(json.loads(gzip.decompress(data)))


def traced(name: str) -> Program:
    step = models.tiny(name)
    return trace(step.fn, *step.args, name=name, **step.options)


def differs(name: Any, version: Any) -> bool:
    return traced_otherwise(name, version, jax.__version__) is not None


@pytest.mark.parametrize(("name", "version"), [one for one in EVERY if not differs(*one.values)])
def test_a_plan_has_the_price_that_it_had(name: str, version: str) -> None:
    program, machine = traced(name), toy_machine()
    plan = for_program(made_by(version, name), program)
    prices = step_prices(program, analyse(program, machine.chip), machine, plan.mesh.sizes)
    found = evaluate(prices, plan.decisions, plan.mesh.names).estimate
    assert found.step_seconds == pytest.approx(plan.estimate.step_seconds, rel=1e-9)
    assert found.peak_bytes == plan.estimate.peak_bytes


@pytest.mark.parametrize(("name", "version"), EVERY)
def test_a_plan_is_lowered(name: str, version: str) -> None:
    plan, step = made_by(version, name), models.tiny(name)
    if differs(name, version):
        with pytest.raises(PlanError, match="the first difference is "):
            lower(plan, step.fn, *step.args)
        return
    comparison = verify_collectives(lower(plan, step.fn, *step.args))
    assert comparison.agrees, str(comparison)


@pytest.mark.parametrize("name", TRACED_OTHERWISE)
def test_the_first_difference_is_named(name: str) -> None:
    program = traced(name)
    others = [one for one in VERSIONS if differs(name, one)]
    assert others  # the oldest and the newest differ: one of them is another than this
    for version in others:
        with pytest.raises(PlanError) as error:
            for_program(made_by(version, name), program)
        found = traced_otherwise(name, version, jax.__version__)
        assert found is not None
        error.match(rf"the first difference is ({found.first}) at .*\.py:\d+\), which makes ")


def test_there_is_a_plan_of_each() -> None:
    files = {f"{name}-{version}.json.gz" for name in NAMES for version in VERSIONS}
    assert {file.name for file in FOLDER.iterdir()} == files
    assert set(TRACED_OTHERWISE) <= set(NAMES)
