"""The fewest lines: Shardy makes the plan of them, and of no fewer."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from autoshard.lower.fewest import fewest
from autoshard.lower.source_lines import Constraint, visits, with_lines
from autoshard.lower.spmd import lower
from tests.requirements.programs import array, plan_of, train_program, train_step

ARGUMENTS = (
    {"up": array(256, 1024), "down": array(1024, 256)},
    {"inputs": array(64, 256), "targets": array(64, 256)},
)
BY_HAND = (
    "pin weights.up [data, model]",
    "pin weights.down [model, data]",
    "pin batch.* [data, None]",
)


@pytest.mark.parametrize("requirements", [(), BY_HAND])
def test_shardy_makes_the_plan_of_the_fewest_and_of_no_fewer(requirements):
    plan = plan_of(train_program(), *requirements)
    checks = []
    lowered = lower(plan, train_step, *ARGUMENTS)
    found = fewest(lowered, train_step, heard=lambda n, ok: checks.append((n, ok)))
    assert found.enough
    count = len(found.lines)
    assert (count, True) in checks
    assert found.checks == len(checks) + 1  # the last one traces the step with these lines alone
    # None can be left out: every set of one fewer was checked, and does not suffice.
    assert checks.count((count - 1, False)) >= count
    assert (count - 1, True) not in checks
    text = str(found)
    if count:
        assert text.startswith(f"{count} of {found.of} lines")
        assert "programs.py:" in text
        assert "with_sharding_constraint(x, P(" in text


def test_what_propagation_does_alone_needs_no_lines():
    """Data parallelism follows from the batch."""
    plan = plan_of(
        train_program(),
        "pin weights.* [None, None]",
        "pin batch.* [(data, model), None]",
        "forbid scope mlp:dot_general [None, ?]",
        "limit all_gather count 0",
        "limit all_to_all count 0",
    )
    found = fewest(lower(plan, train_step, *ARGUMENTS), train_step)
    assert found.enough
    assert not found.lines
    assert str(found) == "the shardings of inputs and results are enough"


def test_a_spot_is_an_expression_of_the_user_and_every_pass_over_it():
    def step(x):
        for _ in range(3):
            x = jax.nn.gelu(x @ x)
        return jax.grad(lambda y: jnp.sum(y * y))(x)

    seen = [one for one in visits(step, array(8, 8)) if one.last and not one.spot.read]
    spots = dict.fromkeys(one.spot for one in seen)
    lines = [spot.user[0].line for spot in spots]
    first = step.__code__.co_firstlineno
    assert lines.count(first + 2) >= 2  # the product, and what gelu makes of it
    assert len([one for one in seen if one.spot == seen[0].spot]) == 3
    # What differentiation makes is nobody's line.
    assert {line - first for line in lines} <= {2, 3}


def test_a_line_of_the_user_constrains_the_cotangent_too():
    def loss(x):
        y = jnp.sin(x)
        return jnp.sum(y * 2.0)

    mesh = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spot = next(one.spot for one in visits(jax.grad(loss), array(8, 8)) if not one.spot.read)

    def constraints(one_way):
        line = Constraint(P("x"), one_way)
        step = with_lines(jax.grad(loss), lambda at, y: line(y, mesh) if at == spot else y)
        return len(re.findall(r"sharding_constraint\[", str(jax.make_jaxpr(step)(array(8, 8)))))

    assert constraints(one_way=False) == 2  # forward and backward
    assert constraints(one_way=True) == 1
