"""What plans say of the compiler that they rest on."""

from __future__ import annotations

import pytest

from autoshard.compiler import belief as module
from autoshard.compiler.belief import belief
from autoshard.machine.compiler import DEFAULTS, LAWS
from autoshard.plan.plan import Plan
from autoshard.plan.text.page import format_plan
from tests.helpers import best_plan, case, toy_machine, with_compiler


@pytest.fixture(autouse=True)
def _forgotten():
    belief.cache_clear()
    yield
    belief.cache_clear()


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_version_that_probes_saw_is_named(name, monkeypatch):
    monkeypatch.setattr(module, "version_of", lambda kind: "")
    assert belief(name).startswith(f"{name}, as probes saw it with ")


def test_a_version_that_no_probe_saw_is_said(monkeypatch):
    monkeypatch.setattr(module, "version_of", lambda kind: "jax-cuda12-plugin 99.0")
    said = belief("xla:gpu")
    assert said.startswith("xla:gpu; no probe has seen jax-cuda12-plugin 99.0, only jax-cuda12-pl")
    assert said.endswith(": ask `bench habits`")


def test_without_a_compiler_plans_rest_on_laws_and_say_so():
    assert LAWS.name == ""
    fn = lambda x, w: x @ w  # noqa: E731
    plan = best_plan(case(fn, *_shapes(), mesh={"x": 8}, machine=toy_machine()))
    assert plan.belief == "laws alone: its machine file names no compiler"
    assert plan.belief in format_plan(plan)
    assert Plan.from_json(plan.to_json()).belief == plan.belief
    known = with_compiler(toy_machine(), name="xla:tpu")
    assert best_plan(case(fn, *_shapes(), mesh={"x": 8}, machine=known)).belief != plan.belief


def _shapes():
    import jax
    import jax.numpy as jnp

    array = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    return array, array
