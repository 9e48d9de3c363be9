"""What one line may say: of cotangents, of what is computed again, of arrays of several shapes."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from autoshard.lower.spmd import make_mesh
from autoshard.program.trace import trace
from autoshard.search.search import search
from autoshard.study.annotate.marks import Marked
from autoshard.study.annotate.planned_spots import PlannedSpots
from autoshard.study.annotate.sites import sites_of, written
from autoshard.study.annotate.source_lines import Constraint, Spot, visits, with_lines
from tests.helpers import toy_machine
from tests.problem.requirements.programs import array, plan_of
from tests.study.annotate.constraints import constraints_of


def test_a_line_of_the_user_constrains_the_cotangent_too():
    def loss(x):
        y = jnp.sin(x)
        return jnp.sum(y * 2.0)

    mesh = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spot = next(
        one.spot for one in visits(jax.value_and_grad(loss), array(8, 8)) if not one.spot.read
    )

    def constraints(spec, cotangent):
        line = Constraint(spec, cotangent)
        step = with_lines(
            jax.value_and_grad(loss), lambda at, y: line(y, mesh) if at.anywhere == spot else y
        )
        return constraints_of(step, array(8, 8))

    rows, columns = P("x", None), P(None, "x")
    assert constraints(rows, rows) == [rows, rows]  # forward and backward
    assert constraints(rows, None) == [rows]
    assert constraints(rows, columns) == [rows, columns]
    assert constraints(None, columns) == [columns]


def test_a_line_may_say_something_else_of_what_is_computed_again():
    """Where the plan lays it out otherwise there, and `checkpoint` computes it again."""

    def step(w, x):
        @jax.checkpoint
        def block(y):
            return jnp.sin(jnp.sin(y @ w))

        return jax.value_and_grad(lambda y: jnp.sum(block(y)))(x)

    shapes = array(64, 64), array(64, 64)
    program = trace(step, *shapes)
    plan = search(program, toy_machine(8), mesh={"x": 8}, baselines=False)
    products = [op for op in program.ops if op.primitive == "dot_general"]
    first = next(op.outputs[0] for op in products if not op.backward)
    again = next(op.outputs[0] for op in products if op.recomputed)
    mesh = make_mesh(plan, None)

    def lines(layout):
        stored = list(plan.decisions.stored)
        stored[first], stored[again] = (0,), layout
        changed = replace(plan, decisions=replace(plan.decisions, stored=tuple(stored)))
        return sites_of(program, changed, mesh, step, *shapes).planned

    def of_the_product(layout):
        (line,) = [
            one for one in lines(layout) if one.names[0].startswith("dot_general in the step")
        ]
        return line

    assert not of_the_product((0,)).says[0].twofold
    line = of_the_product((1,))
    (said,) = line.says
    assert (said.spec, said.again) == (P("x"), (P("x"), P(None, "x")))  # as made, and as kept
    assert "x = autoshard.constrain(x, P('x'), " in str(line)
    assert "again=[P('x'), P(None, 'x')])" in str(line)
    found = constraints_of(written(step, [line], mesh), *shapes)
    assert found[:3] == [P("x", None), P("x", None), P(None, "x")]


def test_one_line_in_a_helper_says_the_same_of_arrays_of_any_rank():
    def twice(y):
        return y * 2.0

    def step(x, z):
        return twice(x), twice(z)

    shapes = array(64, 32), array(64, 32, 16)
    program = trace(step, *shapes)
    asked = "pin x [data, model]", "pin z [data, model, None]"
    plan = plan_of(program, *asked)
    lines = sites_of(program, plan, make_mesh(plan, None), step, *shapes).lines
    said = Constraint(P("data", "model"), P("data", "model"))
    both = [line for line in lines if len(line.places) == 2 and line.says == (said,)]
    assert {spot.read for line in both for spot in line.spots} == {True, False}
    for line in both:
        users = [spot.user[0].function.rpartition(".")[2] for spot in line.spots]
        assert users == ["twice", "twice"]
        assert "float32[64, 32], " in str(line)
        assert "float32[64, 32, 16]" in str(line)


def test_a_line_may_say_something_else_of_each_shape():
    """Where a loop of the user passes arrays of several shapes, and only then."""

    def step(x, z):
        return [y * 2.0 for y in (x, z)]

    shapes = array(64, 32), array(128, 16, 8)
    program = trace(step, *shapes)
    plan = plan_of(program, "pin x [data, model]", "pin z [model, None, data]")
    mesh = make_mesh(plan, None)
    lines = sites_of(program, plan, mesh, step, *shapes).lines
    tables = [line for line in lines if line.table]
    assert tables
    for line in tables:
        assert [spot.shape for spot in line.spots] == [(64, 32), (128, 16, 8)]
        assert [one.spec for one in line.says] == [P("data", "model"), P("model", None, "data")]
        assert ", by x.shape: " in str(line)
        found = constraints_of(written(step, [line], mesh), *shapes)
        assert found == [P("data", "model"), P("model", None, "data")]
    one = next(line for line in lines if len(line.places) == 1)
    assert one.by_shape
    assert not one.table
    same = array(64, 32), array(64, 32)
    program = trace(step, *same)
    plan = plan_of(program, "pin x [data, model]", "pin z [data, model]")
    lines = sites_of(program, plan, mesh, step, *same).lines
    assert not any(line.by_shape for line in lines)


def test_what_does_not_fit_all_arrays_at_a_spot_is_not_said():
    def step(x, z):
        return [y * 2.0 for y in (x, z)]

    shapes = array(64, 32), array(64, 30)
    program = trace(step, *shapes)
    plan = plan_of(program, "pin x [data, model]", "pin z [data, None]")
    planned = PlannedSpots(program, plan)
    marked = [Marked(v, False, False, (), "", 1) for v in program.inputs]
    spot = Spot((), "mul", 0)
    both, first = planned.constraints(marked, spot), planned.constraints(marked[:1], spot)
    assert P("data") in {one.spec for one in both}
    assert P("data", "model") not in {one.spec for one in both}
    assert P("data", "model") in {one.spec for one in first}


def test_the_cotangent_of_an_operand_is_said_as_its_product_is_made_and_as_it_is_kept():
    """A product that derivatives transpose has no place of its own in the user's code."""

    def step(x, w):
        return jax.grad(lambda x, w: jnp.sum(jnp.tanh(x @ w)), argnums=1)(x, w)

    shapes = array(32, 64), array(64, 128)
    program = trace(step, *shapes)
    plan = search(program, toy_machine(8), mesh={"x": 8}, baselines=False)
    mesh = make_mesh(plan, None)
    (turn,) = [op for op in program.ops if op.primitive == "transpose"]
    (product,), (turned,) = turn.inputs, turn.outputs
    assert program.values[product].shape == (128, 64)

    def says(made, kept):
        stored, copy = list(plan.decisions.stored), list(plan.decisions.copy)
        assignment = list(plan.decisions.assignment)
        stored[product], copy[product], stored[turned] = made, None, kept
        assignment[turn.index] = kept
        decisions = replace(
            plan.decisions, stored=tuple(stored), copy=tuple(copy), assignment=tuple(assignment)
        )
        other = replace(plan, decisions=decisions)
        lines = sites_of(program, other, mesh, step, *shapes).planned
        (line,) = [
            line for line in lines if line.spots[0].read and line.spots[0].shape == (64, 128)
        ]
        return line.says[0].cotangent

    assert says((0,), (1,)) == P(None, "x")  # as it lies, with the dimensions in another order
    assert says((1,), (1,)) == (P("x"), P(None, "x"))
    assert says((0,), (-1,)) == (P(None, "x"), P(), P(None, "x"))  # as it is returned
    assert says((-2,), (1,)) == P(None, "x")  # what is not whole cannot be said
