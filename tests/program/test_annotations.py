"""Layouts in a function: of arrays, cotangents, and of what `checkpoint` computes again."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.program.annotations import LayoutsError, parse_key
from tests.helpers import toy_machine

MESH = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
ROWS, COLUMNS, WHOLE = (NamedSharding(MESH, P(*axes)) for axes in (("x",), (None, "x"), ()))
NAMES = {'[{"x"}, {}]': "rows", '[{}, {"x"}]': "columns", "[{}, {}]": "whole"}
SQUARE = jax.ShapeDtypeStruct((8, 8), jnp.float32)


def constraints(function, *shapes):
    """The constraints of a lowered function, in order."""
    text = jax.jit(function).trace(*shapes).lower(lowering_platforms=("tpu",)).as_text()
    return [NAMES[one] for one in re.findall(r"sdy.sharding_constraint \S+ <@\w+, (.*?)> :", text)]


def close(one, other):
    """Sums that cancel are as exact as what is added: the array's largest number."""
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6 * np.abs(other).max())


def test_an_array_and_its_cotangent():
    def said(sharding, **others):
        def loss(x):
            return jnp.sum(jnp.sin(autoshard.constrain(jnp.cos(x), sharding, **others)) * 2.0)

        return constraints(jax.value_and_grad(loss), SQUARE)

    assert said(ROWS) == ["rows", "rows"]
    assert said(ROWS, cotangent=COLUMNS) == ["rows", "columns"]
    assert said(ROWS, cotangent=None) == ["rows"]
    assert said(None, cotangent=COLUMNS) == ["columns"]
    assert said(ROWS, again=COLUMNS) == ["rows", "rows"]  # nothing is computed again


@pytest.mark.parametrize("loop", [True, False])
def test_what_checkpoint_computes_again(loop):
    def block(x, w):
        hidden = jnp.sin(x @ w)
        hidden = autoshard.constrain(hidden, ROWS, cotangent=WHOLE, again=COLUMNS)
        return jnp.sin(hidden @ w), None

    block = jax.checkpoint(block, prevent_cse=not loop)

    def loss(w, x):
        if loop:
            return jnp.sum(jax.lax.scan(block, x, w)[0])
        return jnp.sum(block(block(x, w[0])[0], w[1])[0])

    shapes = jax.ShapeDtypeStruct((2, 8, 8), jnp.float32), SQUARE
    once = ["rows", "columns", "whole"]
    expected = once if loop else ["rows", "rows", "columns", "whole", "columns", "whole"]
    assert constraints(jax.value_and_grad(loss), *shapes) == expected
    # Of what is known from outside there is nothing to compute again.
    assert constraints(lambda w, x: jax.grad(loss, 1)(w, x), *shapes).count("rows") >= 1


def test_what_is_saved_is_not_computed_again():
    def block(x):
        hidden = autoshard.constrain(jnp.sin(x), ROWS, cotangent=None, again=COLUMNS)
        hidden = checkpoint_name(hidden, "kept")
        return jnp.sin(hidden)

    policy = jax.checkpoint_policies.save_only_these_names("kept")
    for given, expected in ((policy, ["rows"]), (None, ["rows", "columns"])):
        kept = jax.checkpoint(block, policy=given)
        found = constraints(jax.value_and_grad(lambda x, f=kept: jnp.sum(f(x) ** 2)), SQUARE)
        assert found == expected


def test_it_is_differentiated_and_vectorised_like_what_it_returns():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x"))

    def plain(x):
        return jnp.sin(x * 2.0) ** 2

    def said(x):
        return autoshard.constrain(jnp.sin(x * 2.0), rows, cotangent=None, again=columns) ** 2

    x = np.linspace(0.0, 1.0, 64, dtype=np.float32).reshape(8, 8)
    for of in (
        lambda f: jax.jit(f)(x),
        lambda f: jax.jit(jax.grad(lambda x: jnp.sum(jax.checkpoint(f)(x))))(x),
        lambda f: jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(x),
        lambda f: jax.jit(jax.hessian(lambda x: jnp.sum(f(x[:8] * jnp.ones((8, 8))))))(x[0]),
        lambda f: jax.jit(jax.vmap(f, in_axes=1, out_axes=2))(np.stack([x, x + 1.0], 1)),
        lambda f: jax.jit(jax.vmap(jax.grad(lambda x: jnp.sum(f(x)))))(np.stack([x, x + 1.0])),
    ):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), of(said), of(plain))


def test_an_array_in_one_layout_and_then_in_another():
    def said(sharding, **others):
        def loss(x):
            return jnp.sum(jnp.sin(autoshard.constrain(jnp.cos(x), sharding, **others)) * 2.0)

        return constraints(jax.value_and_grad(loss), SQUARE)

    assert said([ROWS, COLUMNS]) == ["rows", "columns", "columns", "rows"]
    assert said([ROWS, COLUMNS], cotangent=None) == ["rows", "columns"]
    assert said([ROWS, COLUMNS], cotangent=[ROWS, WHOLE]) == ["rows", "columns", "rows", "whole"]


PRODUCT = {
    "bd,df->bf:dot_general in float32[8,8] #2": autoshard.Reading(
        ROWS, cotangent=WHOLE, again=COLUMNS, gradient=[ROWS, WHOLE], given=COLUMNS
    )
}


def product(x, w):
    return jnp.einsum("bd,df->bf", x, w)


def test_what_the_derivatives_of_a_product_read():
    """Of the weight: by the product, again, by the gradient of `x`; and for its own gradient."""
    told = autoshard.laid_out(product, PRODUCT)
    assert constraints(told, SQUARE, SQUARE) == ["rows"]

    def loss(x, w):
        return jnp.sum(jnp.sin(jax.checkpoint(lambda x: jnp.sin(told(jnp.cos(x), w)))(x)))

    back = constraints(jax.value_and_grad(loss, (0, 1)), SQUARE, SQUARE)
    assert back[:2] == ["rows", "columns"]
    assert sorted(back[2:]) == ["columns", "rows", "whole", "whole"]
    # No gradient of the weight is asked for: nothing is said of what it would read.
    assert constraints(jax.grad(loss), SQUARE, SQUARE) == ["rows", "columns", "rows", "whole"]


def test_it_is_differentiated_like_the_product():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x"))
    reading = autoshard.Reading(rows, cotangent=columns, gradient=columns, given=rows)
    told = autoshard.laid_out(product, {":dot_general in float32[8,8]": reading})
    x = np.linspace(0.0, 1.0, 64, dtype=np.float32).reshape(8, 8)
    w = np.linspace(-1.0, 1.0, 128, dtype=np.float32).reshape(2, 8, 8)

    def scanned(f, x):
        block = jax.checkpoint(lambda y, w: (jnp.sin(f(y, w)), None), prevent_cse=False)
        return jnp.sum(jax.lax.scan(block, x, w)[0])

    def alone(f, x):
        return jnp.sum(jnp.sin(f(jnp.sin(x), x)))

    for of in (
        lambda f: jax.jit(f)(x, w[0]),
        lambda f: jax.jit(jax.grad(lambda x: scanned(f, x)))(x),
        lambda f: jax.jit(lambda x: jax.jvp(lambda x: alone(f, x), (x,), (x,)))(x),
        lambda f: jax.jit(lambda x: jax.jvp(jax.grad(lambda x: alone(f, x)), (x,), (x,)))(x),
        lambda f: jax.jit(jax.grad(lambda x: jnp.sum(jax.grad(lambda x: alone(f, x))(x) ** 2)))(x),
        lambda f: jax.jit(jax.vmap(f, (1, None), 1))(np.stack([x, x + 1.0], 1), w[0]),
        lambda f: jax.jit(jax.vmap(jax.grad(lambda x: alone(f, x)), 1, 2))(np.stack([x, -x], 1)),
        lambda f: jax.jit(jax.vmap(jax.grad(lambda w: jnp.sum(jnp.sin(f(x, w))))))(w),
    ):
        jax.tree.map(close, of(told), of(product))


def test_only_a_product_reads_so():
    told = autoshard.laid_out(jnp.sin, {":sin in float32[8,8]": autoshard.Reading(ROWS)})
    with pytest.raises(LayoutsError) as caught:
        jax.eval_shape(told, SQUARE)
    assert str(caught.value) == (
        "':sin in float32[8,8]' in sin has a Reading, but is read by `sin`: only operands of "
        "conv_general_dilated and dot_general have one; give it a sharding, or a function that "
        "calls autoshard.constrain"
    )


def test_one_of_several_arrays_that_a_key_fits():
    def sines(x):
        return jnp.sin(jnp.sin(jnp.sin(x)))

    assert constraints(autoshard.laid_out(sines, {":sin float32[8,8]": ROWS}), SQUARE) == 3 * [
        "rows"
    ]
    second = autoshard.laid_out(sines, {":sin float32[8,8] #2": ROWS})
    assert constraints(second, SQUARE) == ["rows"]
    fourth = {":sin float32[8,8] #4": ROWS}
    with pytest.raises(LayoutsError, match=r"sin float32.*#4"):
        jax.eval_shape(autoshard.laid_out(sines, fourth), SQUARE)
    assert constraints(autoshard.laid_out(sines, fourth, strict=False), SQUARE) == []


def block(x, weights):
    with jax.named_scope("mlp"):
        hidden = jnp.einsum("bd,df->bf", x, weights["up"])
        return jnp.einsum("bf,fd->bd", jnp.tanh(hidden), weights["down"]), "as it is"


WEIGHTS = {
    "up": jax.ShapeDtypeStruct((8, 16), jnp.float32),
    "down": jax.ShapeDtypeStruct((16, 8), jnp.float32),
}


def test_arrays_of_a_function_by_the_operations_that_make_and_read_them():
    told = autoshard.laid_out(
        lambda x, w: block(x, w)[0],
        {
            "mlp/bd,df->bf float32[8, 16]": ROWS,
            "bf,fd->bd in float32[16,8]": COLUMNS,
            "mlp:tanh float32[8,16]": lambda x: autoshard.constrain(x, None, cotangent=WHOLE),
        },
    )
    assert constraints(told, SQUARE, WEIGHTS) == ["rows", "columns"]

    def loss(x, w):
        return jnp.sum(jnp.sin(told(x, w)))

    back = constraints(jax.value_and_grad(loss, 1), SQUARE, WEIGHTS)
    assert back == ["rows", "columns", "columns", "whole", "rows"]


KEPT = jax.checkpoint_policies.save_only_these_names("kept")


@pytest.mark.parametrize("prevent_cse", [True, False, (False, True)])
@pytest.mark.parametrize("policy", [None, KEPT])
def test_what_checkpoint_is_called_on_is_a_part_of_the_function(prevent_cse, policy, capsys):
    """It is computed again, in scopes of its own, with what is kept and closed over, as before."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x"))
    scale = jnp.linspace(1.0, 2.0, 8)

    def twice(x, w):
        offset = jnp.cos(w)

        @functools.partial(jax.checkpoint, prevent_cse=prevent_cse, policy=policy)
        def block(x, w):
            with jax.named_scope("mlp"):
                hidden = checkpoint_name(jnp.sin(x @ w), "kept")
            return jnp.sin(hidden * scale + offset)

        with jax.named_scope("first"):
            x = block(x, w)
        with jax.named_scope("second"):
            return block(x, w)

    powers = 2.0 ** jnp.arange(8)  # nothing is rounded
    told = autoshard.laid_out(
        twice,
        {
            "first/mlp:sin float32[8,8]": rows,
            "second/mlp:sin float32[8,8]": lambda x: (
                autoshard.constrain(x * powers, None, cotangent=rows, again=columns) / powers
            ),
        },
    )
    assert constraints(told, SQUARE, SQUARE) == ["rows"]

    def loss(function):
        return lambda x, w: jnp.sum(function(x, w) ** 2)

    found = constraints(jax.value_and_grad(loss(told), (0, 1)), SQUARE, SQUARE)
    again = [] if policy else ["columns", "rows"]  # `sin` is differentiated from what it reads
    assert sorted(found) == sorted(["rows", "rows", "rows", *again])

    x, w = (np.linspace(k, 1.0, 64, dtype=np.float32).reshape(8, 8) for k in (0.0, -1.0))
    for of in (
        lambda f: jax.jit(jax.value_and_grad(loss(f), (0, 1)))(x, w),
        lambda f: jax.jit(lambda x: jax.jvp(lambda x: f(x, w), (x,), (x,)))(x),
        lambda f: jax.jit(jax.vmap(jax.grad(loss(f)), (0, None)))(np.stack([x, -x]), w),
    ):
        jax.tree.map(close, of(told), of(twice))

    def residuals(function):
        print_saved_residuals(function, x, w)
        return sorted(line.split()[0] for line in capsys.readouterr().out.splitlines())

    assert residuals(told) == sorted([*residuals(twice), "f32[8]"])  # the powers

    def barriers(function):
        lowered = jax.jit(jax.grad(loss(function), (0, 1))).trace(SQUARE, SQUARE).lower()
        return lowered.as_text().count("stablehlo.optimization_barrier")

    assert barriers(told) == barriers(twice)
    assert (barriers(told) > 0) == (prevent_cse is not False)


def test_what_a_function_is_given():
    """Once, however often it reads it; what `jax.checkpoint` gives to another is not of it."""

    def twice(x, w):
        inner = jax.checkpoint(lambda x: jnp.sin(x) + jnp.cos(x))
        return jnp.cos(x) + inner(jnp.tanh(x)) @ w

    both = autoshard.laid_out(twice, {":argument float32[8,8]": ROWS})
    assert constraints(both, SQUARE, SQUARE) == ["rows", "rows"]
    second = autoshard.laid_out(twice, {":argument float32[8,8] #2": COLUMNS})
    assert constraints(second, SQUARE, SQUARE) == ["columns"]
    back = jax.value_and_grad(lambda x, w: jnp.sum(second(x, w)), 1)
    assert constraints(back, SQUARE, SQUARE) == ["columns", "columns"]
    third = autoshard.laid_out(twice, {":argument float32[8,8] #3": ROWS})
    with pytest.raises(LayoutsError, match=r"#3': did you mean ':argument float32\[8,8\]'"):
        jax.eval_shape(third, SQUARE, SQUARE)


def test_keys_that_fit_nothing_are_all_named():
    told = autoshard.laid_out(
        lambda x, w: block(x, w)[0],
        {"mlp/bd,df->bf float32[8,15]": ROWS, "attention:exp float32[2,2]": ROWS},
    )
    with pytest.raises(LayoutsError) as caught:
        jax.eval_shape(told, SQUARE, WEIGHTS)
    first, one, other = str(caught.value).splitlines()
    assert first == "these keys fit no array of <lambda>:"
    assert one.startswith("  - 'mlp/bd,df->bf float32[8,15]': did you mean 'mlp/bd,df->bf float32")
    assert other.startswith("  - 'attention:exp float32[2,2]'")
    with pytest.raises(LayoutsError) as caught:
        autoshard.laid_out(block, {"mlp": ROWS})
    assert str(caught.value) == (
        "'mlp' is not a key: write `scope float32[8,16]`, `scope in float32[8,16]` for what is "
        "read there, or `scope:primitive float32[8,16]`"
    )


@pytest.mark.parametrize(
    "text",
    ["a/b:jit float32[8,16]", ":exp float32[]", "a/bd,df->bf in int32[4]", "a:exp in int8[2] #3"],
)
def test_keys_are_written_as_they_are_read(text):
    assert str(parse_key(text)) == text


def test_what_a_program_says_so_is_a_requirement():
    """Of the array, of what is computed again, and of the cotangent."""
    mesh = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    rows, columns = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, "x"))

    def step(w, x):
        @jax.checkpoint
        def block(x):
            hidden = autoshard.constrain(jnp.sin(x @ w), rows, cotangent=columns, again=columns)
            return jnp.sin(hidden @ w)

        return jax.value_and_grad(lambda x: jnp.sum(block(x)))(x)

    shapes = (
        jax.ShapeDtypeStruct((64, 64), jnp.float32),
        jax.ShapeDtypeStruct((64, 64), jnp.float32),
    )
    program = autoshard.trace(step, *shapes)
    plan = autoshard.search(program, toy_machine(8), mesh={"x": 8}, baselines=False)
    said = [op for op in program.ops if op.primitive == "sharding_constraint"]
    assert [(op.backward, op.recomputed) for op in said] == [
        (False, False),
        (True, True),
        (True, False),
    ]
    assert all(op.line.startswith("test_annotations.py:") for op in said)
    stored = [plan.decisions.stored[op.outputs[0]] for op in said]
    assert stored == [(0,), (1,), (1,)]
    arguments = [np.linspace(0.0, 1.0, 64 * 64, dtype=np.float32).reshape(64, 64)] * 2
    lowered = autoshard.lower(plan, step, *arguments)
    given = jax.device_put(tuple(arguments), lowered.in_shardings)
    for one, other in zip(lowered.jit()(*given), jax.jit(step)(*arguments), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
