"""Examples that others worked out: a 1-D weight-stationary MLP, and those of Shardy's talk.

The MLP is figure 2(a) of https://arxiv.org/abs/2211.05102, as the mesh dialect's design walks it
through; the others are from the talk on Shardy at the LLVM developers' meeting of 2024.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard import compat
from autoshard.lower.collectives import explicit_collectives
from autoshard.lower.verify import verify
from autoshard.plan.types.body import BodyTypeError
from autoshard.plan.types.op_types import op_types
from autoshard.plan.types.plan_check import check_plan
from autoshard.program.rules.ask_shardy import Rule
from autoshard.program.subaxes import from_shardy_text, shardy_text, split
from tests.helpers import concrete_like, toy_machine
from tests.newer_jax import needs_shard_alike, shard_alike


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def auto(**axes):
    """A mesh without devices, for constraints."""
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


# -- the MLP of the mesh dialect ----------------------------------------------------------------

MLP = f32(2, 4, 8), f32(8, 32), f32(32, 8)


def mlp(mesh, *, weights):
    """Activations sharded along the model dimension at both ends; weights where they are given."""

    def step(x, up, down):
        def at(array, *spec):
            return lax.with_sharding_constraint(array, NamedSharding(mesh, P(*spec)))

        x = at(x, None, None, "x")
        if weights:
            up, down = at(up, None, "x"), at(down, "x")
        hidden = jnp.maximum(jnp.einsum("bsd,df->bsf", x, up), 0.0)
        return at(jnp.einsum("bsf,fd->bsd", hidden, down), None, None, "x")

    return step


def local_shapes(lowered, primitive):
    """The results of one kind of op on one device, in program order."""
    (mapped,) = jax.make_jaxpr(lowered.fn)(*lowered.in_shapes).eqns
    body = mapped.params["jaxpr"]
    return [
        equation.outvars[0].aval.shape
        for equation in getattr(body, "jaxpr", body).eqns
        if equation.primitive.name == primitive
    ]


@pytest.mark.parametrize(("devices", "weights"), [(2, True), (8, False), (8, True)])
def test_the_weight_stationary_mlp_has_exactly_its_collectives(devices, weights):
    step = mlp(auto(x=devices), weights=weights)
    program = autoshard.trace(step, *MLP)
    plan = autoshard.search(program, toy_machine(devices), mesh={"x": devices})
    assert {move.value for move in check_plan(program, plan).moves} == {
        "f32[2, 4, 8@x] -> f32[2, 4, 8]",
        "f32[2, 4, 8]{unreduced=x} -> f32[2, 4, 8@x]",
    }
    assert [move.value for move in plan.moves] == [
        "f32[2, 4, 8@x] -> f32[2, 4, 8]",
        "f32[2, 4, 8]{unreduced=x} -> f32[2, 4, 8@x]",
    ]
    assert [plan.specs["inputs"][f"[{n}]"] for n in range(3)] == [
        P(None, None, "x"), P(None, "x"), P("x"),
    ]  # fmt: skip
    if devices == 2:
        lowered = autoshard.lower(plan, step, *MLP, explicit=True)
        assert local_shapes(lowered, "all_gather") == [(2, 4, 8)]
        assert local_shapes(lowered, "dot_general") == [(2, 4, 16), (2, 4, 8)]
        assert local_shapes(lowered, "max") == [(2, 4, 16)]
        assert local_shapes(lowered, "reduce_scatter") == [(2, 4, 4)]
    if devices == 8:
        checked = verify(plan, step, *MLP, concrete=concrete_like(MLP), explicit=True)
        assert checked.agrees, str(checked)


# -- propagation through a dot --------------------------------------------------------------------

DOT = f32(8, 32), f32(32, 16)


def test_the_dot_of_the_talk():
    mesh = auto(batch=4, tensor=4)

    def step(left, right):
        left = lax.with_sharding_constraint(left, NamedSharding(mesh, P("batch", "tensor")))
        product = left @ right
        return lax.with_sharding_constraint(product, NamedSharding(mesh, P("batch", None)))

    rule = Rule.parse("([i, k], [k, j])->([i, j]) {i=8, j=16, k=32} reduction={k}")
    types = op_types(rule, (0, 2), (4, 4), ("batch", "tensor"))
    assert types.reads == ((0, 1), (-1, 0))
    assert types.written == ((0, -1),)
    assert types.partial == ((1, "sum"),)
    plan = autoshard.search(
        autoshard.trace(step, *DOT), toy_machine(16), mesh={"batch": 4, "tensor": 4}
    )
    assert plan.specs["inputs"] == {"[0]": P("batch", "tensor"), "[1]": P("tensor")}
    assert plan.specs["outputs"] == {"": P("batch")}
    (sum_,) = plan.moves
    assert (sum_.kind, sum_.axes) == ("all_reduce", ("tensor",))
    (made,) = explicit_collectives(jax.jit(step).trace(*DOT).lower(lowering_platforms=("tpu",)))
    assert (made.kind, made.axes, made.bytes) == (sum_.kind, sum_.axes, sum_.bytes)


# -- propagation through a reshape, with sub-axes -------------------------------------------------

NAMES, SIZES = split({"x": 4, "y": (2, 2)})


def test_the_reshape_of_the_talk_splits_an_axis():
    rule = Rule.parse("([ij, k])->([i, jk]) {i=8, j=2, k=4}")
    types = op_types(rule, (0, 0, 1), SIZES, NAMES)
    before, after = types.reads[0], types.written[0]
    assert (before, after) == ((0, 0, 0), (0, 0, 1))
    text = '<@mesh, [{"x", "y":(1)2}, {"y":(2)2}]>'
    spec = P(("x", "y:(1)2"), "y:(2)2")
    assert shardy_text(spec, 2, NAMES) == text
    assert from_shardy_text(text, NAMES, SIZES) == spec
    # Shardy itself, on the coarse mesh:
    mesh = auto(x=4, y=4)
    reshape = jax.jit(lambda a: a.reshape(8, 8), in_shardings=NamedSharding(mesh, P(("x", "y"))))
    module = reshape.trace(f32(16, 4)).lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")
    assert shardings_of(module, "stablehlo.reshape") == [
        ((("x", None), ("y", (1, 2))), (("y", (2, 2)),))
    ]


def shardings_of(module, name):
    """The layouts that Shardy gives to the results of some ops, as `compat` reads them."""
    found = []

    def visit(operation):
        for region in operation.regions:
            for block in region.blocks:
                for op in block.operations:
                    if op.operation.name == name:
                        attribute = compat.shardy_sharding_of(op.results[0])
                        found.append(compat.shardy_layout(attribute)[1])
                    visit(op.operation)

    visit(compat.with_explicit_collectives(module))
    return found


# -- conflicts ------------------------------------------------------------------------------------


def test_the_conflict_table_of_the_talk_has_no_cut_without_reshards():
    """Tensors T0 to T4 over factors F0 to F3; axis `a` is asked for by F0, F1 and F2 at once."""
    axes = ("a", "b", "c", "d")
    table = [{0: "abc"}, {1: "ba", 3: "d"}, {2: "ca"}, {}, {0: "abd"}]
    agreed = {0: "ab", 1: "ba", 2: "ca", 3: "d"}  # per factor, what its tensors agree on
    rule = Rule.parse(
        "([i, j, k, l], [i, j, k, l], [i, j, k, l], [i, j, k, l])->([i, j, k, l]) "
        "{i=16, j=16, k=16, l=16}"
    )
    layouts = [
        tuple(next((f for f, here in row.items() if axis in here), -1) for axis in axes)
        for row in table
    ]
    conflicts = {
        axis: {layout[n] for layout in layouts if layout[n] >= 0} for n, axis in enumerate(axes)
    }
    assert {axis for axis, factors in conflicts.items() if len(factors) > 1} == {*"abcd"}
    assert conflicts["a"] == {f for f, here in agreed.items() if "a" in here}
    best = min(
        sum(
            layout != read
            for layout, read in zip(layouts, (*types.reads, *types.written), strict=True)
        )
        for cut in itertools.product(range(-1, 4), repeat=4)
        for types in [op_types(rule, cut, (2, 2, 2, 2), axes)]
        if not types.faults
    )
    assert best == 4  # a cut serves one of the five as it lies; a plan weighs which


# -- shard as, and manual computation -------------------------------------------------------------


@needs_shard_alike
def test_values_that_are_sharded_alike_take_one_layout():
    mesh = auto(data=2, model=2)

    def step(x, y):
        x = lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", "model")))
        x, z = shard_alike(x, jnp.sin(y))
        return x * 2, jnp.tanh(z)

    args = f32(8, 2), f32(8, 2)
    program = autoshard.trace(step, *args)
    plan = autoshard.search(program, toy_machine(4), mesh={"data": 2, "model": 2})
    assert {*plan.specs["inputs"].values()} == {P("data", "model")}
    assert plan.moves == ()


def test_the_manual_computation_of_the_talk():
    mesh = auto(data=4, model=2)
    specs = (P(None, "model"), P("model", None))

    def body(left, right):
        return lax.psum(left @ right, "model")

    types = autoshard.check_types(body, mesh, specs, P(), f32(2, 16), f32(16, 32))
    assert str(types) == "output 0: f32[2, 32]"
    assert [str(kind) for kind in types.inputs[0]] == ["I", "V"]
    with pytest.raises(BodyTypeError, match=r"missing jax.lax.psum\(output, 'model'\)"):
        autoshard.check_types(
            lambda left, right: left @ right, mesh, specs, P(), f32(2, 16), f32(16, 32)
        )
