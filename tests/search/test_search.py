"""What `search` promises: limits kept, repairs named, meshes searched, interrupts survived."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard import models
from autoshard.cost.mesh_shapes import candidate_meshes
from autoshard.machine.load import load
from autoshard.plan.text.page import proof_text
from autoshard.program.trace import Program, trace
from autoshard.search.one_shape import Found, MeshSearcher
from autoshard.search.search import InfeasibleError, MeshError, search
from tests.helpers import toy_machine


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def product(rows: int = 2048, columns: int = 2048) -> Program:
    def step(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    return trace(step, array(rows, 1024), array(1024, columns))


def tiny(name: str) -> Program:
    fn, args, options = models.tiny(name)
    return trace(fn, *args, **options)


def test_infeasible_names_a_limit_that_works() -> None:
    program, machine = product(), toy_machine(8)
    with pytest.raises(InfeasibleError, match="no plan fits the memory limit") as caught:
        search(program, machine, mesh={"x": 8}, memory_limit=2.0**20)
    named = re.search(r"--memory-limit (\d+)(KiB|MiB)", str(caught.value))
    assert named is not None
    limit = int(named[1]) * {"KiB": 2**10, "MiB": 2**20}[named[2]]
    plan = search(program, machine, mesh={"x": 8}, memory_limit=limit)
    assert plan.estimate.peak_bytes <= limit
    with pytest.raises(InfeasibleError):  # and one of that size less is too small
        search(program, machine, mesh={"x": 8}, memory_limit=0.9 * limit)


@pytest.mark.parametrize("name", ["mlp", "llama3-8b"])
def test_a_limit_is_kept_and_costs_something(name: str) -> None:
    program, machine = tiny(name), toy_machine(8)
    free = search(program, machine, mesh={"x": 2, "y": 4}, time_limit=10.0, baselines=False)
    limit = 0.9 * free.estimate.peak_bytes
    tight = search(
        program,
        machine,
        mesh={"x": 2, "y": 4},
        memory_limit=limit,
        time_limit=10.0,
        baselines=False,
    )
    assert tight.estimate.peak_bytes <= limit
    assert tight.estimate.step_seconds >= free.proof.bound * (1 - 1e-9)
    assert tight.proof.bound <= tight.proof.objective


def test_a_searched_mesh_is_no_worse_than_any_given_one() -> None:
    program, machine = tiny("mlp"), toy_machine(8)
    searched = search(program, machine, gap=0.0, baselines=False)
    for mesh in ({"x": 8}, {"x": 2, "y": 4}, {"x": 4, "y": 2}):
        given = search(program, machine, mesh=mesh, gap=0.0, baselines=False)
        assert searched.estimate.step_seconds <= given.estimate.step_seconds * (1 + 1e-6)
    assert searched.proof.meshes
    assert searched.proof.bound <= searched.estimate.step_seconds


def test_a_mesh_that_does_not_use_the_chips() -> None:
    with pytest.raises(MeshError, match="has 6 devices, but toy has 8 chips"):
        search(product(), toy_machine(8), mesh={"x": 2, "y": 3})


def test_an_axis_that_divides_nothing() -> None:
    def step(x: Any) -> Any:
        return x * 2

    with pytest.raises(MeshError, match="axis y=2 divides no dimension"):
        search(trace(step, array(9, 27)), toy_machine(6), mesh={"x": 3, "y": 2})


def test_an_interrupt_leaves_the_best_plan() -> None:
    told = []

    def progress(news: Any) -> None:
        told.append(news)
        if news.objective < float("inf"):
            raise KeyboardInterrupt

    plan = search(tiny("llama3-8b"), "v5p-8", gap=0.0, progress=progress)
    assert told
    assert plan.proof.limit_hit == "interrupted"
    assert plan.proof.bound <= plan.proof.objective == plan.estimate.step_seconds


def test_the_first_layouts_are_those_of_the_state() -> None:
    """State comes back as it went in; what is printed is what was decided."""
    program = tiny("mlp")
    plan = search(program, toy_machine(8), mesh={"x": 8}, baselines=False)
    for given, returned in program.ties:
        before = plan.specs["inputs"][program.input_paths[given]]
        after = plan.specs["outputs"][program.output_paths[returned]]
        assert before == after


def test_what_ended_a_search_is_about_all_mesh_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is close to the best of its shape is not proven against one left for time."""
    program, machine = product(), load("h100-16")
    _, *others = candidate_meshes(machine)
    assert others
    asked = search(program, machine, gap=0.01, baselines=False)
    assert asked.proof.gap <= 0.01
    assert asked.proof.limit_hit in (None, "gap")
    solve = MeshSearcher.solve

    def late(self: MeshSearcher, sizes: tuple[int, ...], seconds: float, **given: Any) -> Found:
        found = solve(self, sizes, seconds, **given)
        report = replace(found.outcome.report, limit_hit="gap")
        if sizes in others:
            report = replace(report, bound=report.bound / 2, limit_hit="time")
        return replace(found, outcome=replace(found.outcome, report=report))

    monkeypatch.setattr(MeshSearcher, "solve", late)
    left = search(program, machine, gap=0.01, baselines=False)
    assert left.proof.gap > 0.01
    assert left.proof.limit_hit == "time"
    assert "stopped by the time limit" in proof_text(left)


def test_what_the_chips_have_no_lowering_for_is_refused():
    program = trace(jnp.linalg.eigvals, jax.ShapeDtypeStruct((8, 16, 16), jnp.float32))
    with pytest.raises(InfeasibleError) as caught:
        search(program, "v5e-8", baselines=False)
    first, op, repair = str(caught.value).splitlines()
    assert first == "JAX cannot lower these for TPU v5e (tpu):"
    assert op.startswith("  eig at ")
    assert repair == "compute them on the host, outside of the step or in jax.pure_callback"


def test_a_misspelt_word_for_what_is_saved_is_refused() -> None:
    wrong: Any = "serach"
    with pytest.raises(ValueError, match=r"remat='serach' .* did you mean search\?"):
        search(product(), toy_machine(), remat=wrong)
