"""The types of `shard_map` bodies: as JAX's own check where it speaks, and all faults at once."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as Spec

import autoshard
from autoshard.plan.types.axis_type import Kind
from autoshard.plan.types.body import BodyTypeError

MESH = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def f(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def scanned(start):
    return lambda a: lax.scan(lambda c, row: (c + row, c * 2), start(), a)


def pending(a):
    return lax.pcast(a, "x", to="unreduced")


def grad_of_sum(a):
    return jax.grad(lambda b: lax.psum(jnp.sum(b**2), "x"))(a)


ACCEPTED = {
    "row parallel": (
        lambda a, w: lax.psum(a @ w, "y"), (Spec("x", "y"), Spec("y")), Spec("x"),
        (f(8, 8), f(8, 8)),
    ),
    "a sum of equal terms": (lambda a: lax.psum(a, "y"), (Spec("x"),), Spec("x"), (f(8, 8),)),
    "a gather for all": (
        lambda a: lax.all_gather(a, "x", tiled=True, to="invarying"),
        (Spec("x"),), Spec(), (f(8, 8),),
    ),
    "scatter, then gather": (
        lambda a: lax.all_gather(lax.psum_scatter(a, "x", tiled=True), "x", to="invarying"),
        (Spec(),), Spec(), (f(8, 8),),
    ),
    "a carry that varies": (
        scanned(lambda: lax.pcast(jnp.zeros(4), "x", to="varying")),
        (Spec(None, "x"),), (Spec("x"), Spec(None, "x")), (f(8, 8),),
    ),
    "gradients": (grad_of_sum, (Spec("x"),), Spec("x"), (f(8, 8),)),
    "pending sum": (
        lambda a: lax.psum(lax.pcast(a, "x", to="unreduced"), "x"),
        (Spec("x"),), Spec(), (f(8, 8),),
    ),
    "branches": (
        lambda a: lax.cond(lax.psum(jnp.sum(a), ("x",)) > 0, lambda: a, lambda: a * 2),
        (Spec("x"),), Spec("x"), (f(8, 8),),
    ),
    "rings": (
        lambda a: a + lax.ppermute(a, "y", [(0, 1), (1, 2), (2, 3), (3, 0)]),
        (Spec(None, "y"),), Spec(None, "y"), (f(8, 8),),
    ),
    "experts": (
        lambda a: jax.nn.relu(lax.all_to_all(a, "y", 1, 0, tiled=True)),
        (Spec("y"),), Spec(None, "y"), (f(8, 8),),
    ),
}  # fmt: skip

REFUSED = {
    "a missing sum": (
        lambda a, w: a @ w, (Spec("x", "y"), Spec("y")), Spec("x"), (f(8, 8), f(8, 8)),
    ),
    "a gather that varies": (
        lambda a: lax.all_gather(a, "x", tiled=True), (Spec("x"),), Spec(), (f(8, 8),),
    ),
    "a place of its own": (
        lambda a: a * lax.axis_index("y"), (Spec("x"),), Spec("x"), (f(8, 8),),
    ),
    "a carry that comes to vary": (
        scanned(lambda: jnp.zeros(4)),
        (Spec(None, "x"),), (Spec("x"), Spec(None, "x")), (f(8, 8),),
    ),
    "a sum over one axis too many": (
        lambda a, b: lax.psum((a, b), ("x", "y")), (Spec("x"), Spec("y")), (Spec(), Spec()),
        (f(8, 8), f(8, 8)),
    ),
    "branches that differ": (
        lambda a: lax.cond(True, lambda: a, lambda: lax.psum(a, "x")),
        (Spec("x"),), Spec("x"), (f(8, 8),),
    ),
    "a product of pending sums": (
        lambda a: lax.psum(pending(a) * pending(a), "x"), (Spec("x"),), Spec(), (f(8, 8),),
    ),
}  # fmt: skip


def traced(body, in_specs, out_specs, args):
    mapped = jax.shard_map(body, mesh=MESH, in_specs=in_specs, out_specs=out_specs)
    return jax.make_jaxpr(mapped)(*args).jaxpr.eqns[-1].params["jaxpr"]


def kinds_of(aval):
    """JAX's own type of a value over the axes of the mesh."""
    mat = aval.mat
    return tuple(
        Kind.VARYING if a in mat.varying
        else Kind.PARTIAL if a in mat.unreduced
        else Kind.REPLICATE if a in mat.reduced
        else Kind.INVARIANT
        for a in MESH.axis_names
    )  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_jax_accepts_has_its_types(name):
    body, in_specs, out_specs, args = ACCEPTED[name]
    types = autoshard.check_types(body, MESH, in_specs, out_specs, *args)
    jaxpr = traced(body, in_specs, out_specs, args)
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    assert types.outputs == tuple(kinds_of(var.aval) for var in jaxpr.outvars)
    assert types.inputs == tuple(kinds_of(var.aval) for var in jaxpr.invars)


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses_is_refused(name):
    body, in_specs, out_specs, args = REFUSED[name]
    with pytest.raises(Exception, match=r"vary|type|unreduced|replicat"):
        traced(body, in_specs, out_specs, args)
    with pytest.raises(BodyTypeError, match="does not type-check"):
        autoshard.check_types(body, MESH, in_specs, out_specs, *args)


def layer(a, w, bias):
    hidden = a @ w
    total = lax.pmax(hidden, "x")
    return hidden + bias, total, lax.all_gather(bias, "y")


def test_all_faults_are_named_at_once():
    specs = (Spec("x", "y"), Spec("y"), Spec("y"))
    with pytest.raises(BodyTypeError) as error:
        autoshard.check_types(
            layer, MESH, specs, (Spec("x"), Spec(), Spec()), f(8, 8), f(8, 8), f(32)
        )
    assert str(error.value).split("\n  - ") == [
        "the body layer does not type-check (3 faults):",
        "output 0 is f32[4, 8]{V: x, y}, but its spec P('x',) says that it is I over y; missing "
        "jax.lax.psum(output, 'y') where a sum is meant, jax.lax.all_gather(output, 'y', "
        "to=\"invarying\") where the parts are, or 'y' in its spec",
        "output 1 is f32[4, 8]{V: y}, but its spec P() says that it is I over y; missing "
        "jax.lax.psum(output, 'y') where a sum is meant, jax.lax.all_gather(output, 'y', "
        "to=\"invarying\") where the parts are, or 'y' in its spec",
        "output 2 is f32[4, 8]{V: y}, but its spec P() says that it is I over y; missing "
        "jax.lax.psum(output, 'y') where a sum is meant, jax.lax.all_gather(output, 'y', "
        "to=\"invarying\") where the parts are, or 'y' in its spec",
    ]


def test_a_fault_inside_has_its_line_and_does_not_hide_the_others():
    body, in_specs, _, args = REFUSED["a carry that comes to vary"]
    with pytest.raises(BodyTypeError) as error:
        autoshard.check_types(body, MESH, in_specs, (Spec(), Spec()), *args)
    line = inspect.getsourcelines(scanned)[1] + 1
    _, first, *others = str(error.value).split("\n  - ")
    assert first.startswith(f"test_body.py:{line}: scan body function carry input and carry output")
    assert [fault.split(",")[0] for fault in others] == [
        "output 0 is f32[4]{V: x}", "output 1 is f32[8",
    ]  # fmt: skip


def test_a_choice_of_each_device_varies_whatever_is_chosen():
    def body(a):
        return lax.cond(lax.axis_index("x") > 0, lambda: a * 2, lambda: a * 3)

    run = jax.jit(jax.shard_map(body, mesh=MESH, in_specs=Spec(), out_specs=Spec()))
    shards = [np.asarray(s.data)[0] for s in run(jnp.ones(8)).addressable_shards]
    assert set(shards) == {2.0, 3.0}  # JAX's check lets an array through that is none
    with pytest.raises(BodyTypeError, match=r"output 0 is f32\[8\]\{V: x\}, but its spec P\(\)"):
        autoshard.check_types(body, MESH, Spec(), Spec(), f(8))
    kept = autoshard.check_types(body, MESH, Spec(), Spec("x"), f(8))
    assert str(kept) == "output 0: f32[8]{V: x}"


def test_a_square_of_a_pending_sum_is_no_sum_of_squares():
    def body(a):
        return lax.psum(lax.integer_pow(pending(a), 2), "x")

    with pytest.raises(BodyTypeError) as error:
        autoshard.check_types(body, MESH, Spec("x"), Spec(), f(8, 8))
    line = inspect.getsourcelines(body)[1] + 1
    assert (
        f"integer_pow (test_body.py:{line}) of f32[4, 8]{{P: x}}: over x, integer_pow is not "
        "linear in its partial operands; missing jax.lax.psum of them"
    ) in str(error.value)


def random_body(dice):
    """A body of random sums, products and collectives, with random specs."""
    axes = [a for a in ("x", "y") if dice.random() < 0.6]
    steps = [int(k) for k in dice.integers(0, 8, 4)]
    names = [str(dice.choice(["x", "y"])) for _ in steps]

    def body(a, b):
        for step, axis in zip(steps, names, strict=True):
            if step == 0:
                a = lax.psum(a, axis)
            elif step == 1:
                a = a + b
            elif step == 2:
                a = a * lax.axis_index(axis)
            elif step == 3:
                a = lax.all_gather(lax.psum_scatter(a, axis, tiled=True), axis, tiled=True)
            elif step == 4:
                a = lax.pmax(a, axis)
            elif step == 5:
                b = lax.ppermute(a, axis, [(0, 1), (1, 0)])
            elif step == 6:
                b = jnp.tanh(lax.psum(b, axis))
            else:
                a = lax.scan(lambda c, _: (jnp.sin(c), None), a + b, None, length=2)[0]
        return a, b

    return body, (Spec(*axes[:1]), Spec(*axes[1:])), (Spec(*axes[:1]), Spec(*axes[1:]))


def test_random_bodies_are_judged_as_jax_judges_them():
    judged = {True: 0, False: 0}
    for seed in range(60):
        body, in_specs, out_specs = random_body(np.random.default_rng(seed))
        sizes = [8 * (MESH.shape[s[0]] if len(s) else 1) for s in in_specs]
        args = [f(size) for size in sizes]
        try:
            traced(body, in_specs, out_specs, args)
            accepted = True
        except ValueError:
            accepted = False
        judged[accepted] += 1
        if accepted:
            autoshard.check_types(body, MESH, in_specs, out_specs, *args)
        else:
            with pytest.raises(BodyTypeError):
                autoshard.check_types(body, MESH, in_specs, out_specs, *args)
    assert min(judged.values()) > 10, judged


def test_an_error_of_the_body_is_its_own():
    with pytest.raises(TypeError, match="dot_general requires contracting dimensions"):
        autoshard.check_types(lambda a: a @ a, MESH, Spec(), Spec(), f(8, 4))
