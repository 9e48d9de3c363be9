"""What Shardy makes of constraints: the facts that lowering is built on, and the reader itself."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from autoshard.lower.axes import permuted_axes
from autoshard.lower.collectives import Collective, explicit_collectives
from autoshard.lower.compare import Comparison, compare, normalise

MESH = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def sharding(*spec):
    return NamedSharding(MESH, PartitionSpec(*spec))


def put(value, *spec):
    return jax.lax.with_sharding_constraint(value, sharding(*spec))


def array(shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding(*spec))


def lower(function, *arguments):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))


def moves(function, *arguments, **options):
    """(kind, axes, bytes, count) of all that moves data, reductions and slices joined."""
    found = normalise(explicit_collectives(lower(function, *arguments), **options))
    return [
        (one.kind, ",".join(one.axes), one.bytes, one.count)
        for one in found
        if one.kind != "all_slice"
    ]


X = array((16, 32))
W = array((32, 64))


# -- kinds, axes and bytes -----------------------------------------------------------------------


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
    assert gather.line.startswith("test_collectives.py:")


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


# -- reductions (a) ------------------------------------------------------------------------------


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


# -- operands and results (b) --------------------------------------------------------------------


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


# -- loops, branches, remat (c, d, e) ------------------------------------------------------------

STACK = array((6, 32, 32), None, None, "y")
STATE = array((16, 32), "x", None)


def loop(*, entry=None, first=None, last=None, stacked=None):
    def run(weights, state):
        if entry:
            state = put(state, *entry)

        def body(state, weight):
            if first:
                state = put(state, *first)
            state = jnp.tanh(jnp.dot(state, put(weight, None, "y")))
            if last:
                state = put(state, *last)
            result = jnp.sin(state)
            return state, put(result, *stacked) if stacked else result

        return jax.lax.scan(body, state, weights)

    return run


GATHER = ("all_gather", "y", 8 * 32 * 4, 6)


def test_a_loop_multiplies_by_its_trip_count():
    agreed = ("x", None)
    assert moves(loop(entry=agreed, first=agreed, last=agreed), STACK, STATE) == [GATHER]


def test_carries_whose_three_constraints_disagree_move_at_the_boundary():
    entry = moves(loop(entry=(None, "y"), first=("x", None), last=("x", None)), STACK, STATE)
    assert sorted(entry) == sorted([("all_gather", "x", 16 * 8 * 4, 1), GATHER, GATHER])
    ends = moves(loop(entry=("x", None), first=("x", None), last=(None, "y")), STACK, STATE)
    assert ("all_gather", "x", 16 * 8 * 4, 6) in ends


def test_stacked_results_keep_the_layout_of_the_body():
    agreed = ("x", None)
    run = loop(entry=agreed, first=agreed, last=agreed, stacked=("x", "y"))
    assert moves(run, STACK, STATE) == [GATHER]

    def resharded(weights, state):
        state, results = run(weights, state)
        return state, put(results, None, "x", None)

    expected = [GATHER, ("all_gather", "y", 6 * 8 * 32 * 4, 1)]
    assert moves(resharded, STACK, STATE) == expected


def test_stacked_inputs_sharded_over_the_loop_dimension_cost_in_every_step():
    agreed = ("x", None)
    run = loop(entry=agreed, first=agreed, last=agreed)
    found = moves(run, array((6, 32, 32), "x", None, None), STATE)
    assert ("all_to_all", "x", 3 * 32 * 8 * 4, 6) in found


def test_a_closed_over_array_is_resharded_once_outside_of_the_loop():
    def run(weight, state):
        def body(state, _):
            return put(jnp.dot(put(state, "x"), put(weight, None, "y")), "x", None), None

        return jax.lax.scan(body, put(state, "x"), None, length=5)[0]

    found = moves(run, array((32, 32), "y", None), STATE)
    assert ("all_to_all", "y", 8 * 32 * 4, 1) in found
    assert ("all_gather", "y", 8 * 32 * 4, 5) in found
    assert len(found) == 2


def test_the_gradient_of_a_loop_counts_both_loops():
    agreed = ("x", None)
    run = loop(entry=agreed, first=agreed, last=agreed)

    def loss(weights, state):
        return jnp.sum(run(weights, state)[0])

    found = moves(jax.grad(loss), STACK, STATE)
    assert sorted(found) == sorted(
        [GATHER, ("all_reduce", "x", 32 * 8 * 4, 6), ("all_reduce", "y", 8 * 32 * 4, 6)]
    )


def test_nested_loops_multiply():
    def run(state):
        def inner(state, _):
            return put(put(jnp.sin(state), None, None), "x", None), None

        def outer(state, _):
            return jax.lax.scan(inner, put(state, "x", None), None, length=3)[0], None

        return jax.lax.scan(outer, put(state, "x", None), None, length=5)[0]

    assert moves(run, STATE) == [("all_gather", "x", 16 * 32 * 4, 15)]


def while_loop(state):
    def proceed(state):
        return jnp.max(state) < 10

    def body(state):
        return put(put(state, None, None), "x", None) * 2

    with jax.named_scope("until"):
        return jax.lax.while_loop(proceed, body, put(state, "x", None))


def test_a_while_loop_takes_its_trip_count_from_the_user_or_says_so():
    lowered = lower(while_loop, STATE)
    found = explicit_collectives(lowered)
    gather = next(one for one in found if one.kind == "all_gather")
    assert gather.count == 1
    assert "until" in gather.counted_once[0]
    assert "counted once, because its trip count is unknown: jit(while_loop)/until" in str(
        compare((), found)
    )
    line = gather.counted_once[0].split()[-1]
    for key in ("until", line):
        known = explicit_collectives(lowered, trip_counts={key: 7})
        assert [one.count for one in known if one.kind == "all_gather"] == [7]
        assert not any(one.counted_once for one in known)


def test_branches_agree_or_move():
    def branch(outside):
        def run(flag, v):
            here = put(v, "x", None)
            out = jax.lax.cond(
                flag, lambda v: put(jnp.sin(v), "x", None), lambda v: put(v, "x", None), here
            )
            return put(out, *outside)

        return moves(run, array((), dtype=jnp.bool_), STATE)

    assert branch(("x", None)) == []
    assert branch((None, None)) == [("all_gather", "x", 16 * 32 * 4, 1)]


def test_constraints_survive_checkpoint_and_barriers():
    def block(v, w):
        h = put(jnp.dot(put(v, "x", None), put(w, None, "y")), "x", "y")
        return jnp.tanh(put(h, "x", None))

    def loss(v, w):
        return jnp.sum(put(jax.checkpoint(block)(v, w), "x", None))

    found = moves(jax.grad(loss, argnums=1), STATE, array((32, 32), None, "y"))
    assert sorted(found) == [
        ("all_gather", "y", 8 * 32 * 4, 1),
        ("all_reduce", "x", 32 * 8 * 4, 1),
    ]

    def barrier(v):
        (later,) = jax.lax.optimization_barrier((put(v, "x", None),))
        return put(later, None, None), put(v, None, None)

    assert moves(barrier, STATE) == [("all_gather", "x", 16 * 32 * 4, 1)] * 2


# -- calls ---------------------------------------------------------------------------------------


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


# -- several results, constants, whole dimensions (f, g, h) --------------------------------------


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


# -- normalise -----------------------------------------------------------------------------------


def link(*collectives):
    """Each collective as the only reader of the one before."""
    return [
        dataclasses.replace(one, result=i, operand=i - 1 if i else None, only_use=i > 0)
        for i, one in enumerate(collectives)
    ]


def reduced(*axes):
    return Collective("all_reduce", axes, 64)


def sliced(*axes, **options):
    return Collective("all_slice", axes, 8, **options)


def named(collectives):
    return [f"{one.kind}({','.join(one.axes)}) {one.bytes}" for one in collectives]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (link(reduced("x"), sliced("x")), ["reduce_scatter(x) 64"]),
        (link(reduced("x"), sliced("x", "y")), ["reduce_scatter(x) 64", "all_slice(y) 8"]),
        (link(reduced("x", "y"), sliced("x")), ["all_reduce(x,y) 64", "all_slice(x) 8"]),
        (link(reduced("x", "y"), sliced("x"), sliced("y")), ["reduce_scatter(x,y) 64"]),
        (link(reduced("x"), sliced("x"), sliced("y")), ["reduce_scatter(x) 64", "all_slice(y) 8"]),
        (link(reduced("x"), sliced("x", count=2)), ["all_reduce(x) 64", "all_slice(x) 8"]),
        ([reduced("x"), sliced("x")], ["all_reduce(x) 64", "all_slice(x) 8"]),
    ],
)
def test_normalise(given, expected):
    once = normalise(given)
    assert named(once) == expected
    assert normalise(once) == once


def test_a_reduction_with_a_second_use_stays():
    def run(v, w):
        whole = put(jnp.dot(put(v, None, "x"), put(w, "x", None)), None, None)
        return put(whole, "x", None), jnp.sin(whole)

    assert moves(run, X, W) == [("all_reduce", "x", 16 * 64 * 4, 1)]


# -- compare -------------------------------------------------------------------------------------


def test_compare_prints_what_is_missing_and_what_is_not_planned():
    planned = [
        Collective("all_gather", ("x",), 2048, count=2, scope="step/layer", line="model.py:7"),
        Collective("reduce_scatter", ("y", "x"), 4096),
        Collective("all_reduce", ("x",), 16, scope="step/loss"),
        Collective("all_slice", ("x",), 8),
    ]
    found = [
        Collective("all_gather", ("x",), 2048, count=3, scope="jit(step)/a", line="model.py:7"),
        Collective("all_gather", ("x",), 2048, count=1, scope="jit(step)/b", line="model.py:8"),
        Collective("reduce_scatter", ("x", "y"), 4096, scope="jit(step)/c", line="model.py:9"),
    ]
    comparison = compare(planned, found)
    assert not comparison
    assert [tally.kind for tally in comparison.missing] == ["all_reduce"]
    assert [(tally.kind, tally.matched) for tally in comparison.unplanned] == [("all_gather", 2)]
    gathered_at = "jit(step)/a model.py:7; jit(step)/b model.py:8"
    assert str(comparison).splitlines() == [
        "collectives: 3 as planned, 1 missing, 2 unplanned",
        "           kind            axes  local bytes  planned  found  where",
        f"unplanned  all_gather      x           2,048        2      4  {gathered_at}",
        "missing    all_reduce      x              16        1      0  step/loss",
        "ok         reduce_scatter  x,y         4,096        1      1  jit(step)/c model.py:9",
        "all_slice, which moves nothing: 1 planned, 0 found",
    ]


def test_compare_agrees_when_kinds_axes_bytes_and_counts_do():
    agreed = ("x", None)
    found = explicit_collectives(lower(loop(entry=agreed, first=agreed, last=agreed), STACK, STATE))
    assert compare([Collective("all_gather", ("y",), 8 * 32 * 4, count=6)], found).agrees
    assert not compare([Collective("all_gather", ("y",), 8 * 32 * 4, count=5)], found)
    assert Comparison(()).agrees
