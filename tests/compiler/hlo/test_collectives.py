"""Collectives read from real texts: kinds, axes, bytes, counts, scopes and lines."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.compiler.hlo.collectives import HloCollective, collectives, find, made_once
from autoshard.compiler.hlo.text import read_module
from autoshard.plan.plan import MeshShape
from tests.compiler.hlo.dumps import compiled, mesh_of, on, shape_of

MESH = mesh_of({"x": 2, "y": 4})
SHAPE = shape_of(MESH)
X = jax.ShapeDtypeStruct((16, 64), jnp.float32)


def found(text: str, mesh: MeshShape = SHAPE) -> list[HloCollective]:
    return collectives(read_module(text), mesh)


def brief(records: list[HloCollective]) -> list[tuple[object, ...]]:
    return [(r.kind, ",".join(r.axes), r.bytes, r.count) for r in records]


def manual(function, spec, out=None):
    """The texts of collectives that the user writes inside of a shard_map."""
    wrapped = jax.shard_map(
        function, mesh=MESH, in_specs=spec.spec, out_specs=(out or spec).spec, check_vma=False
    )
    return compiled(wrapped, jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=spec))


SHARD = 16 * 64 * 4 // 8
BOTH = on(MESH, ("x", "y"))
ROWS = on(MESH, "x", "y")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda v: lax.psum(v, "x"), ("all_reduce", "x", SHARD, 1)),
        (lambda v: lax.psum(v, ("x", "y")), ("all_reduce", "x,y", SHARD, 1)),
        (lambda v: lax.pmax(v, "y"), ("all_reduce", "y", SHARD, 1)),
        (lambda v: lax.all_gather(v, "y", tiled=True)[:2], ("all_gather", "y", 4 * SHARD, 1)),
        (lambda v: lax.all_gather(v, "x", tiled=True)[:2], ("all_gather", "x", 2 * SHARD, 1)),
        (lambda v: lax.all_to_all(v, "y", 1, 1, tiled=True), ("all_to_all", "y", SHARD, 1)),
        (
            lambda v: lax.ppermute(v, "y", [(i, (i + 1) % 4) for i in range(4)]),
            ("collective_permute", "y", SHARD, 1),
        ),
        (
            lambda v: lax.ppermute(v, ("x", "y"), [(0, 5)]),
            ("collective_permute", "x,y:(2)2", SHARD, 1),
        ),
        (
            lambda v: jnp.tile(lax.psum_scatter(v, "y", scatter_dimension=1, tiled=True), (1, 4)),
            ("reduce_scatter", "y", SHARD, 1),
        ),
    ],
)
@pytest.mark.parametrize("final", [False, True])
def test_every_kind(function, expected, final):
    assert brief(found(manual(function, BOTH)[final])) == [expected]


def test_devices_in_another_order():
    """Groups are numbered by the place in the mesh, not by the device."""
    devices = [3, 1, 7, 5, 0, 2, 6, 4]
    mesh = jax.sharding.Mesh(
        MESH.devices.reshape(-1)[devices].reshape(2, 4),
        ("x", "y"),
        axis_types=MESH.axis_types,
    )
    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=on(mesh, "x"))
    for text in compiled(lambda v: lax.with_sharding_constraint(v, on(mesh)) * 2, x):
        assert brief(found(text)) == [("all_gather", "x", 4096, 1)]


def test_loops_multiply_and_scopes_and_lines_are_named():
    weights = jax.ShapeDtypeStruct((3, 64, 64), jnp.float32, sharding=on(MESH, None, "x"))

    def step(x, weights):
        def layer(x, w):
            with jax.named_scope("layer"):
                whole = lax.with_sharding_constraint(jnp.sin(w), on(MESH))
                return jnp.tanh(x @ whole), None

        return lax.scan(layer, x, weights)[0]

    x = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=on(MESH, "y"))
    (one,) = found(compiled(step, x, weights)[0])
    assert brief([one]) == [("all_gather", "x", 64 * 64 * 4, 3)]
    assert "while/body" in one.scope
    assert one.line.startswith("test_collectives.py:")
    assert str(one).startswith(f"all_gather(x) {64 * 64 * 4} B x 3  {one.scope}  {one.line}")
    assert one.wire_bytes == 64 * 64 * 4 / 2
    assert not one.asynchronous


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ((None, None), [("all_reduce", "x", 4096, 1)]),
        (("x", None), [("reduce_scatter", "x", 4096, 1)]),
        ((None, "x"), [("reduce_scatter", "x", 4096, 1)]),
        # As many bytes are left as after a slice along x, but each shard is still a sum over x.
        (("y", None), [("all_reduce", "x", 4096, 1)]),
        ((("x", "y"), None), [("reduce_scatter", "x", 4096, 1)]),
    ],
)
def test_a_sum_that_is_sliced_along_its_axes_is_a_reduce_scatter(out, expected):
    mesh = mesh_of({"x": 2, "y": 2})

    def product(a, b):
        # The whole sum has a place of its own, so that the slice is not part of the product.
        whole = lax.with_sharding_constraint(a @ b, on(mesh))
        return lax.with_sharding_constraint(whole, on(mesh, *out))

    a = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=on(mesh, None, "x"))
    b = jax.ShapeDtypeStruct((32, 64), jnp.float32, sharding=on(mesh, "x"))
    partitioned, _ = compiled(product, a, b)
    assert brief(found(partitioned, shape_of(mesh))) == expected


def test_a_sum_with_a_second_reader_stays_an_all_reduce():
    def product(a, b):
        whole = lax.with_sharding_constraint(a @ b, on(MESH))
        return lax.with_sharding_constraint(whole, on(MESH, "x")), jnp.sin(whole)

    a = jax.ShapeDtypeStruct((16, 32), jnp.float32, sharding=on(MESH, None, "x"))
    b = jax.ShapeDtypeStruct((32, 64), jnp.float32, sharding=on(MESH, "x"))
    assert brief(found(compiled(product, a, b)[0])) == [("all_reduce", "x", 4096, 1)]


def test_what_is_gathered_for_two_readers_is_gathered_once():
    mesh = mesh_of({"x": 8})

    def step(w, a, b):
        w = jnp.sin(w)
        both = a @ w, jnp.einsum("ij,kj->ik", b, w)
        return tuple(lax.with_sharding_constraint(one, on(mesh, "x")) for one in both)

    shapes = (32, 64), (16, 32), (16, 64)
    args = [jax.ShapeDtypeStruct(one, jnp.float32, sharding=on(mesh, "x")) for one in shapes]
    module = read_module(compiled(step, *args)[0])
    every = find(module, shape_of(mesh))
    once = brief([one.record for one in made_once(every)])
    assert once == [("all_gather", "x", 8192, 1)]
    assert len(made_once([*every, *every])) == 1


def test_a_module_for_another_mesh():
    text = manual(lambda v: lax.psum(v, "x"), BOTH)[1]
    with pytest.raises(ValueError, match=r"is for 8 devices, the mesh \(x=2\) has 2"):
        found(text, MeshShape(("x",), (2,)))
