"""The reader of collectives: their kinds, axes and bytes, at each call, and what is not listed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from autoshard.lower.axes import permuted_axes
from autoshard.lower.collectives import Collective, explicit_collectives
from autoshard.lower.compare import normalise
from tests.lower.constrained import MESH, W, X, array, lower, moves, put, sharding

# -- kinds, axes and bytes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((None, "y"), (None, None), [("all_gather", "y", 16 * 32 * 4, 1)]),
        (("x", "y"), (None, "y"), [("all_gather", "x", 16 * 8 * 4, 1)]),
        ((None, None), ("x", "y"), []),
        (("x", None), (None, "x"), [("all_to_all", "x", 8 * 32 * 4, 1)]),
        ((("x", "y"), None), (("y", "x"), None), [("collective_permute", "x,y", 2 * 32 * 4, 1)]),
        (
            (("x", "y"), None),
            ("y", None),
            [("collective_permute", "x,y", 2 * 32 * 4, 1), ("all_gather", "x", 4 * 32 * 4, 1)],
        ),
        (
            ("y", None),
            ("x", None),
            [
                ("collective_permute", "x,y:(1)2", 4 * 32 * 4, 1),
                ("all_gather", "y:(2)2", 8 * 32 * 4, 1),
            ],
        ),
    ],
)
def test_reshards(before, after, expected):
    assert moves(lambda v: put(jnp.sin(put(v, *before)), *after), X) == expected


def test_chained_constraints_stay_one_by_one():
    def chained(v):
        return put(put(put(v, ("x", "y"), None), "x", None), None, None)

    assert moves(chained, X) == [
        ("all_gather", "y", 8 * 32 * 4, 1),
        ("all_gather", "x", 16 * 32 * 4, 1),
    ]


def test_a_collective_knows_its_tensor_scope_and_line():
    def scoped(v):
        with jax.named_scope("layer"):
            return put(put(v, "x", None), None, None)

    *_, gather = explicit_collectives(lower(scoped, array((16, 32), dtype=jnp.bfloat16)))
    assert (gather.shape, gather.dtype, gather.bytes) == ((16, 32), "bf16", 1024)
    assert gather.scope == "jit(scoped)/layer/sharding_constraint"
    assert gather.line.startswith("constrained.py:")


def test_the_module_is_left_as_it_was():
    lowered = lower(lambda v: put(put(v, "x", None), None, None), X)
    text = lowered.as_text()
    explicit_collectives(lowered)
    explicit_collectives(lowered.compiler_ir("stablehlo"))
    assert lowered.as_text() == text


@pytest.mark.parametrize(
    ("dtype", "name", "size"),
    [(jnp.uint32, "u32", 4), (jnp.bool_, "bool", 1), (jnp.complex64, "c64", 8)],
)
def test_element_types(dtype, name, size):
    found = explicit_collectives(
        lower(lambda v: put(put(v, "x", None), None, None), array((16, 32), dtype=dtype))
    )
    assert (found[-1].dtype, found[-1].bytes) == (name, 16 * 32 * size)


def test_a_collective_refuses_a_kind_that_is_none():
    with pytest.raises(ValueError, match="kind 'gather' is none of all_gather, all_reduce"):
        Collective("gather", ("x",), 4)


# -- calls -------------------------------------------------------------------------------------


def test_a_function_is_counted_at_each_call_with_its_scope():
    @jax.jit
    def inner(v):
        with jax.named_scope("deep"):
            return put(put(jnp.sin(v), "x", None), None, None)

    def outer(v):
        with jax.named_scope("first"):
            v = inner(v)
        with jax.named_scope("second"):
            return inner(v)

    found = [one for one in explicit_collectives(lower(outer, X)) if one.kind == "all_gather"]
    assert [one.scope.split("/")[1] for one in found] == ["first", "second"]
    assert all(one.scope.endswith("jit(inner)/deep/sharding_constraint") for one in found)


def test_a_reduction_returned_from_a_call_is_joined_with_the_slice_outside():
    @jax.jit
    def inner(v, w):
        return put(jnp.dot(put(v, None, "x"), put(w, "x", None)), None, None)

    def outer(v, w):
        return put(inner(v, w), "x", None)

    assert moves(outer, X, W) == [("reduce_scatter", "x", 16 * 64 * 4, 1)]


# -- what is left to the compiler, and what jit adds -------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        lambda v: jnp.pad(v, ((2, 2), (0, 0))),
        lambda v: v[:8],
        lambda v: jnp.roll(v, 1, axis=0),
        lambda v: jnp.flip(v, axis=0),
        lambda v: jnp.cumsum(v, axis=0),
    ],
    ids=["pad", "slice", "roll", "flip", "cumsum"],
)
def test_halos_are_left_to_the_compiler_and_not_listed(operation):
    assert moves(lambda v: put(operation(put(v, "x", None)), "x", None), X) == []


def test_top_k_along_a_sharded_dimension_is_not_listed():
    def best(v):
        values, places = jax.lax.top_k(put(v, None, "y"), 4)
        return put(values), put(places)

    assert moves(best, X) == []


def test_collectives_written_inside_shard_map_are_not_listed():
    body = jax.shard_map(
        lambda v: jax.lax.psum(v, "x"),
        mesh=MESH,
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec(),
    )
    found = moves(lambda v: body(put(v, None, "y")), X)
    assert not any(kind == "all_reduce" for kind, *_ in found)


def test_results_are_resharded_to_the_shardings_that_jit_is_given():
    function = jax.jit(lambda v: put(v, "x", None), out_shardings=sharding())
    lowered = function.trace(X).lower(lowering_platforms=("tpu",))
    found = normalise(explicit_collectives(lowered))
    assert [one.kind for one in found] == ["all_slice", "all_gather"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([("x", "y")], [("y", "x")], ("x", "y")),
        ([("x", "y", "z")], [("x", "z", "y")], ("y", "z")),
        ([("y",)], [("x", "y:(2)2")], ("x", "y:(1)2")),
        ([("x",), ("y",)], [("x",), ("y",)], ()),
        ([("x",), ("z",)], [("z",), ("x",)], ("x", "z")),
    ],
)
def test_permuted_axes(before, after, expected):
    assert permuted_axes(before, after, {"x": 2, "y": 4, "z": 2}) == expected
