"""The spots of a step, of which a line may say something: what makes values, what reads them."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from autoshard.program.trace import trace
from autoshard.study.annotate.marks import marked_values
from autoshard.study.annotate.source_lines import visits, with_lines
from tests.problem.requirements.programs import array


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


def test_what_the_derivatives_of_a_product_read_is_found():
    """The gradient of one operand reads the other, and the cotangent of the result."""

    def step(w, x):
        return jax.grad(lambda w, x: jnp.sum(jnp.sin(x @ w)), (0, 1))(w, x)

    shapes = array(32, 16), array(64, 32)
    program = trace(step, *shapes)
    mesh = jax.sharding.AbstractMesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    reads = [one.spot for one in visits(step, *shapes) if one.spot.primitive == "dot_general"]
    x, w, _ = reads
    assert (x.read, x.shape, w.read, w.shape) == (True, (64, 32), True, (32, 16))
    marked = marked_values(program, mesh, step, shapes, {x: 0, w: 1})
    _, back, other = [op for op in program.ops if op.primitive == "dot_general"]
    of_w, of_x = sorted((back, other), key=lambda op: program.inputs[1] not in op.inputs)
    for number, value, own, others in ((0, 1, of_x, of_w), (1, 0, of_w, of_x)):
        (gradient,) = [one for one in marked[number] if one.gradient]
        assert gradient.value == program.inputs[value]
        assert [op for op, _ in gradient.readers] == [others.index]
        (given,) = [one for one in marked[number] if one.given]
        assert [op for op, _ in given.readers] == [own.index]
        assert given.value in own.inputs
        assert given.value in others.inputs


def test_operations_that_are_left_out_are_no_spots():
    def step(table, rows):
        return table.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)

    shapes = array(64, 32), jax.ShapeDtypeStruct((16,), jnp.int32)
    made = [one for one in visits(step, *shapes) if one.last and not one.spot.read]
    assert [one.spot.primitive for one in made] == ["gather"]
    traced = [one.primitive.name for one in jax.make_jaxpr(step)(*shapes).eqns]
    assert traced == ["broadcast_in_dim", "gather"]


def test_a_product_in_an_einsum_has_spots_of_its_own():
    def step(x, y):
        return jnp.einsum("abc,adb->dca", x, y)

    shapes = array(4, 8, 2), array(4, 16, 8)
    seen = visits(step, *shapes)
    assert [(one.spot.primitive, one.spot.read) for one in seen] == [
        ("dot_general", True),
        ("dot_general", True),
        ("dot_general", False),
        ("transpose", True),
        ("transpose", False),
    ]
    assert {one.spot.within for one in seen} == {"einsum"}
    assert {one.scope for one in seen} == {("abc,adb->dca",)}
    same = with_lines(step, lambda spot, array: array)
    assert str(jax.make_jaxpr(same)(*shapes)) == str(jax.make_jaxpr(step)(*shapes))
