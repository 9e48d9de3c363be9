"""What constraints on the operands and results of an operation move."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autoshard.lower.collectives import explicit_collectives
from tests.lower.constrained import W, X, array, lower, moves, put

# -- reductions --------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce", [jnp.sum, jnp.max, jnp.min, jnp.prod])
def test_every_reduction_is_one_all_reduce(reduce):
    both = moves(lambda v: put(reduce(put(v, "x", "y"))), X)
    assert both == [("all_reduce", "x,y", 4, 1)]
    one = moves(lambda v: put(reduce(put(v, "x", "y"), axis=0), "y"), X)
    assert one == [("all_reduce", "x", 8 * 4, 1)]


def test_argmax_reduces_value_and_index():
    found = moves(lambda v: put(jax.lax.argmax(put(v, "x", "y"), 1, jnp.int32), "x"), X)
    assert found == [("all_reduce", "y", 8 * 4, 1)] * 2


def test_gather_from_a_sharded_vocabulary_is_reduced():
    def look_up(table, tokens):
        return put(put(table, "y", None)[put(tokens, "x")], "x", None)

    tokens = array((16,), dtype=jnp.int32)
    found = moves(look_up, array((128, 32)), tokens)
    assert found == [("all_reduce", "y", 8 * 32 * 4, 1)]

    def scattered(table, tokens):
        return put(look_up(table, tokens), "x", "y")

    found = moves(scattered, array((128, 32)), tokens)
    assert found == [("reduce_scatter", "y", 8 * 32 * 4, 1)]


@pytest.mark.parametrize("method", ["add", "max"])
def test_scatter_that_combines_is_reduced_over_its_updates(method):
    def scatter(table, tokens, updates):
        at = put(table, "y", None).at[put(tokens, "x")]
        return put(getattr(at, method)(put(updates, "x", None)), "y", None)

    arguments = (array((128, 32)), array((16,), dtype=jnp.int32), X)
    assert moves(scatter, *arguments) == [("all_reduce", "x", 32 * 32 * 4, 1)]


def test_scatter_that_overwrites_gathers_its_updates():
    def scatter(table, tokens, updates):
        at = put(table, "y", None).at[put(tokens, "x")]
        return put(at.set(put(updates, "x", None)), "y", None)

    found = moves(scatter, array((128, 32)), array((16,), dtype=jnp.int32), X)
    assert found == [("all_gather", "x", 16 * 4, 1), ("all_gather", "x", 16 * 32 * 4, 1)]


def test_convolution_reduces_its_input_channels():
    def convolve(images, kernel):
        images, kernel = put(images, None, "x"), put(kernel, "y", "x")
        return put(jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME"), None, "y")

    found = moves(convolve, array((8, 16, 32, 32)), array((32, 16, 3, 3)))
    assert found == [("all_reduce", "x", 8 * 8 * 32 * 32 * 4, 1)]


# -- operands and results ----------------------------------------------------------------------


def dot(left, right, *results):
    def run(v, w):
        out = jnp.dot(put(v, *left), put(w, *right))
        for spec in results:
            out = put(out, *spec)
        return out

    return moves(run, X, W)


def test_a_reduced_axis_may_scatter_onto_any_dimension_of_the_result():
    expected = [("reduce_scatter", "x", 16 * 64 * 4, 1)]
    for scattered in (("x", None), (None, "x")):
        assert dot((None, "x"), ("x", None), scattered) == expected
        assert dot((None, "x"), ("x", None), (None, None), scattered) == expected
    expected = [("reduce_scatter", "y", 8 * 64 * 4, 1)]
    assert dot(("x", "y"), ("y", None), (("x", "y"), None)) == expected


def test_scattering_part_of_the_reduced_axes_stays_an_all_reduce():
    both = ("x", "y")
    assert dot((None, both), (both, None), (None, "y")) == [("all_reduce", "x,y", 4096, 1)]
    assert dot((None, both), (both, None), ("x", "y")) == [("reduce_scatter", "x,y", 4096, 1)]


def test_axes_of_one_factor_need_one_order_in_both_operands():
    found = dot((None, ("x", "y")), (("y", "x"), None), (None, None))
    assert found == [("collective_permute", "x,y", 16 * 4 * 4, 1), ("all_reduce", "x,y", 4096, 1)]


def test_the_operands_decide_how_an_operation_runs():
    assert dot(("x", None), (None, None), (None, None)) == [("all_gather", "x", 4096, 1)]
    assert dot(("x", None), (None, "y"), ("x", "y")) == []


def test_a_constraint_on_the_result_alone_flows_into_replicated_operands():
    found = explicit_collectives(lower(lambda v, w: put(jnp.dot(put(v), put(w)), "x", None), X, W))
    assert [(one.kind, one.bytes) for one in found] == [("all_slice", 8 * 32 * 4)]


def test_an_axis_on_two_factors_is_settled_by_shardy():
    found = dot(("x", None), (None, "x"), ("x", None))
    assert found == [("all_gather", "x", 16 * 32 * 4, 1), ("all_to_all", "x", 16 * 32 * 4, 1)]


def test_two_uses_of_a_value_may_have_two_layouts():
    def uses(v):
        return put(jnp.sin(put(v, "x", None)), "x", None), put(
            jnp.cos(put(v, None, "y")), None, "y"
        )

    assert moves(uses, array((16, 32), "x")) == [("all_gather", "x", 16 * 8 * 4, 1)]


def test_equal_reshards_are_listed_as_often_as_written():
    def twice(v, w):
        return jnp.dot(put(v, "x"), put(w)), jnp.dot(jnp.sin(put(v, "x")), put(w))

    found = moves(twice, X, array((32, 64), "y"))
    assert found == [("all_gather", "y", 32 * 64 * 4, 1)] * 2


def test_reshape_keeps_the_major_dimension_and_moves_the_minor():
    merge = lambda before: lambda v: put(jnp.reshape(put(v, *before), (512,)), before[0])  # noqa: E731
    assert moves(merge(("x", None)), X) == []
    assert moves(merge(("x", "y")), X) == [("all_gather", "y", 8 * 32 * 4, 1)]
    split = lambda v: put(jnp.reshape(put(v, None, ("x", "y")), (16, 2, 16)), None, "x", "y")  # noqa: E731
    assert moves(split, X) == []


# -- several results, constants, whole dimensions ----------------------------------------------


def test_sort_moves_a_sharded_dimension_away_and_back():
    kept = moves(lambda v: put(jnp.sort(put(v, "x", None), axis=1), "x", None), X)
    assert kept == []
    found = moves(lambda v: put(jnp.sort(put(v, None, "y"), axis=1), None, "y"), X)
    assert found == [("all_to_all", "y", 16 * 8 * 4, 1)] * 2


def test_the_results_of_one_operation_may_be_resharded_apart():
    def run(v, w):
        first, second = jax.lax.sort((put(v, "x"), put(w, "x")), dimension=1, num_keys=1)
        return put(first, "x"), put(second)

    assert moves(run, X, X) == [("all_gather", "x", 16 * 32 * 4, 1)]


def test_constants_and_iotas_are_made_per_use():
    def run(v, w):
        rows = jnp.sin(jax.lax.broadcasted_iota(jnp.float32, (16, 32), 0))
        return put(put(v, "x") + rows, "x"), put(put(w, None, "y") + rows, None, "y")

    assert moves(run, X, X) == []
    bits = moves(
        lambda key: put(jax.random.bits(jax.random.wrap_key_data(key), (16, 32)), "x", "y"),
        array((2,), dtype=jnp.uint32),
    )
    assert bits == []


def test_concatenation_and_dynamic_slice_need_their_dimension_whole():
    def join(v, w):
        return put(jnp.concatenate([put(v, "x"), put(w, "x")], 0), "x")

    assert moves(join, X, X) == [
        ("all_to_all", "x", 8 * 32 * 4, 1),
        ("all_to_all", "x", 8 * 32 * 4, 1),
        ("all_to_all", "x", 32 * 16 * 4, 1),
    ]

    def cut(v, start):
        return put(jax.lax.dynamic_slice_in_dim(put(v, "x", None), start, 4, 0), None, None)

    assert moves(cut, X, array((), dtype=jnp.int32)) == [
        ("all_to_all", "x", 8 * 32 * 4, 1),
        ("all_gather", "x", 4 * 32 * 4, 1),
    ]


def test_dynamic_update_slice_gathers_the_update_only():
    def write(v, update, start):
        update = put(update, "x", "y")
        out = jax.lax.dynamic_update_slice_in_dim(put(v, "x", "y"), update, start, 0)
        return put(out, "x", "y")

    found = moves(write, X, array((4, 32)), array((), dtype=jnp.int32))
    assert found == [("all_gather", "x", 4 * 8 * 4, 1)]
