"""Memory limits hold in the order in which the compiler runs a plan, where a plan does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.plan.fits import limit_for
from autoshard.plan.plan import Plan
from autoshard.plan.text.page import format_plan, proof_text
from autoshard.program.trace import Program, trace
from autoshard.search.all_shapes import InfeasibleError
from autoshard.search.search import search
from autoshard.units import parse_size
from tests.helpers import hiding, toy_machine

MESH = {"x": 4}
SHARDED = ["pin x [x, None]", "pin first [x, None]", "pin second [x, None]"]
GATHERED = [*SHARDED, "pin result[0] [x, None]"]
OTHERS = ("all_to_all", "reduce_scatter", "all_reduce", "collective_permute")


def step(x: Any, first: Any, second: Any) -> Any:
    """Two products beside a loop; where both weights are gathered, one gather brings both."""
    count, _ = jax.lax.scan(lambda n, _: (n + 1.0, None), jnp.zeros(()), length=3)
    return jnp.tanh(x @ first) @ second, count


@pytest.fixture(scope="module")
def program() -> Program:
    return trace(step, *3 * [jax.ShapeDtypeStruct((256, 256), jnp.float32)])


@pytest.fixture(scope="module")
def free(program: Program) -> Plan:
    plan = search(program, hiding(4), mesh=MESH, requirements=GATHERED, baselines=False)
    assert plan.estimate.expected_bytes > plan.estimate.peak_bytes
    return plan


def test_a_plan_that_its_compiler_runs_in_less_is_found(program: Program, free: Plan) -> None:
    limit = (free.estimate.peak_bytes + free.estimate.expected_bytes) / 2
    plan = search(
        program,
        hiding(4),
        mesh=MESH,
        memory_limit=limit,
        gap=0.0,
        requirements=GATHERED,
        baselines=False,
    )
    assert plan.estimate.expected_bytes <= limit
    assert plan.memory_limit == limit
    assert plan.estimate.step_seconds > free.estimate.step_seconds
    # The bound is that of the whole space, in which the other plan is.
    assert plan.proof.bound <= free.estimate.step_seconds
    assert plan.proof.limit_hit == "order"
    assert "as their compiler orders them" in proof_text(plan)


def test_a_scheme_that_does_not_fit_takes_no_such_plans_place(program: Program, free: Plan) -> None:
    limit = (free.estimate.peak_bytes + free.estimate.expected_bytes) / 2
    plan = search(program, hiding(4), mesh=MESH, memory_limit=limit, requirements=GATHERED)
    assert plan.estimate.expected_bytes <= limit


def test_where_none_is_found_the_error_has_the_plan_that_needs_least_and_the_limit_for_it(
    program: Program, free: Plan
) -> None:
    """Weights that are asked for as they lie in the best plan leave no other way."""
    asked = [*GATHERED, *(f"limit {kind} count 0" for kind in OTHERS)]
    limit = float(free.estimate.peak_bytes)
    with pytest.raises(InfeasibleError, match="no plan was found that fits") as error:
        search(
            program, hiding(4), mesh=MESH, memory_limit=limit, requirements=asked, baselines=False
        )
    plan = error.value.plan
    assert plan is not None
    assert plan.estimate.peak_bytes <= limit < plan.estimate.expected_bytes
    enough = limit_for(plan.estimate.expected_bytes)
    assert f"--memory-limit {enough} is enough" in str(error.value)
    assert "too much" in format_plan(plan)
    again = search(
        program,
        hiding(4),
        mesh=MESH,
        memory_limit=parse_size(enough),
        requirements=asked,
        baselines=False,
    )
    assert again.estimate.expected_bytes <= parse_size(enough)


def test_compilers_of_one_order_search_once(program: Program) -> None:
    plan = search(program, toy_machine(4), mesh=MESH, baselines=False)
    assert plan.estimate.scheduled_bytes is None
    assert plan.proof.limit_hit != "order"
