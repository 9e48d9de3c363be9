"""What constraints move in loops, branches and blocks that are computed again."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from autoshard.lower.collectives import explicit_collectives
from autoshard.lower.compare import compare
from tests.lower.constrained import STACK, STATE, array, loop, lower, moves, put

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
