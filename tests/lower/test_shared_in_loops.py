"""What a loop shares with all its turns: whole for one reader, in parts for another, as planned.

Where loops are written into the program, Shardy lays an array as the last constraint in a chain
says. An array that is stored whole and read in parts stays whole for who reads it so: nothing cuts
it and gathers it again in every turn.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.lower import lower
from autoshard.lower.verify import verify_collectives
from tests.helpers import case, random_plan

NODES, EDGES = (jax.ShapeDtypeStruct((size, 32), jnp.float32) for size in (16, 64))
ROWS = jax.ShapeDtypeStruct((64,), jnp.int32)


def summed_by_rows(nodes, edges, rows):
    """`rows` are read where edges are looked up and where they are summed."""

    def turn(nodes, _):
        made = jnp.tanh(edges) * nodes[rows]
        return nodes + jnp.zeros_like(nodes).at[rows].add(made), None

    return lax.scan(turn, nodes, None, length=3)[0]


GIVEN = case(summed_by_rows, NODES, EDGES, ROWS, mesh={"x": 8})


def reads_rows_both_ways(plan):
    """Whether the loop has its rows whole, and a copy in parts."""
    program, decisions = GIVEN.built.prices.program, plan.decisions
    entered = (op.outputs[0] for op in program.ops if op.primitive == "enter")
    return [(-1,), (0,)] in (
        [decisions.stored[value], decisions.copy[value]]
        for value in entered
        if program.values[value].dtype == "int32"
    )


PLANS = {seed: random_plan(GIVEN, seed) for seed in range(12)}


def test_some_plans_read_rows_both_ways():
    assert sum(map(reads_rows_both_ways, PLANS.values())) >= 2


@pytest.mark.parametrize("seed", PLANS)
def test_collectives_of_every_turn_are_as_planned(seed):
    found = verify_collectives(lower(PLANS[seed], summed_by_rows, NODES, EDGES, ROWS))
    assert found.agrees, str(found)
