"""Ops that look up places of a cut dimension compute what the uncut ones do, at every start."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autoshard.lower import interpret, lower
from autoshard.lower.verify import (
    numeric_differences,
    verify,
    verify_collectives,
    verify_written,
)
from autoshard.program.trace import trace
from autoshard.search import search
from tests.helpers import best_plan, case, concrete_like, toy_machine

F32, I32 = jnp.float32, jnp.int32


def shape(*sizes, dtype=F32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def column(cache, new, position):
    return jax.lax.dynamic_update_slice(cache, new, (jnp.int32(0), position))


def place_of_two(cache, new, row, position):
    return jax.lax.dynamic_update_slice(cache, new, (row, position))


def row_a_request(cache, new, positions):
    def one(part, row, start):
        return jax.lax.dynamic_update_slice(part, row, (start, 0))

    return jax.vmap(one)(cache, new, positions)


def read_a_row(cache, position):
    return 2 * jax.lax.dynamic_slice(cache, (position, 0), (1, 64))


def read_a_row_of_flags(cache, position):
    return jax.lax.dynamic_slice(cache > 0, (position, 0), (1, 64))


def gradient_of_a_row(cache, position):
    return jax.grad(lambda a: jnp.sum(jax.lax.dynamic_slice(a, (position, 0), (1, 64)) ** 2))(cache)


AT = shape(dtype=I32)
PROGRAMS = {
    "column": (column, (shape(4, 64), shape(4, 1), AT), {0: (None, "x")}),
    "place_of_two": (place_of_two, (shape(8, 64), shape(1, 1), AT, AT), {0: (None, "x")}),
    "row_a_request": (
        row_a_request,
        (shape(3, 64, 5), shape(3, 1, 5), shape(3, dtype=I32)),
        {0: (None, "x", None)},
    ),
    "row_of_a_cut_width": (
        row_a_request,
        (shape(3, 64, 8), shape(3, 1, 8), shape(3, dtype=I32)),
        {0: (None, None, "x")},
    ),
    "read_a_row": (read_a_row, (shape(64, 64), AT), {0: ("x", None)}),
    "read_a_row_of_flags": (read_a_row_of_flags, (shape(64, 64), AT), {0: ("x", None)}),
    "gradient_of_a_row": (gradient_of_a_row, (shape(64, 64), AT), {0: ("x", None)}),
}


def planned(name):
    """A plan that keeps the first argument cut as the table says, and does not gather it."""
    fn, args, pins = PROGRAMS[name]
    texts = [
        f"pin [{number}] [{', '.join(str(axis) for axis in axes)}]" for number, axes in pins.items()
    ]
    plan = search(
        trace(fn, *args), toy_machine(), mesh={"x": 8}, requirements=texts, baselines=False
    )
    return plan, fn, args


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("explicit", [False, True])
def test_starts_at_below_and_beyond_the_ends(name, explicit):
    plan, fn, args = planned(name)
    assert not any(move.kind == "all_gather" and move.bytes >= 1024 for move in plan.moves)
    lowered = lower(plan, fn, *args, explicit=explicit)
    assert (verify_written if explicit else verify_collectives)(lowered).agrees
    assert numeric_differences(lowered, fn, concrete_like(args)) == []
    if row_a_request is fn:
        starts = jnp.array([-70, 64, 67], I32)
        concrete = (*concrete_like(args)[:2], starts)
        assert numeric_differences(lowered, fn, concrete) == []


def read_rows(x, position):
    """Twice as many as the mesh has devices, so that each takes two of them."""
    return jax.lax.dynamic_slice(x, (position, jnp.int32(0)), (16, 8)) + 1.0


def read_rows_of_a_short_type(x, position):
    """What is cut is what a conversion makes of them."""
    return jnp.tanh(read_rows(x, position).astype(jnp.bfloat16).astype(F32))


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("step", [read_rows, read_rows_of_a_short_type])
def test_the_start_of_a_slice_that_is_cut_afterwards_is_clamped(monkeypatch, step, explicit):
    """XLA makes one slice of the two; the judge finds it where it does."""
    args = (shape(32, 8), shape(dtype=I32))
    wanted = ["pin [0] [None, None]", "pin result [x, None]"]
    plan = search(
        trace(step, *args), toy_machine(), mesh={"x": 8}, requirements=wanted, baselines=False
    )
    lowered = lower(plan, step, *args, explicit=explicit)
    assert numeric_differences(lowered, step, concrete_like(args)) == []
    asked = []
    monkeypatch.setattr(
        interpret, "starts_within", lambda equation, arrays: asked.append(equation) or arrays
    )
    unclamped = lower(plan, step, *args, explicit=explicit)
    numeric_differences(unclamped, step, concrete_like(args))
    assert asked


def test_a_write_that_is_dropped_is_found(monkeypatch):
    plan, fn, args = planned("column")
    monkeypatch.setattr(interpret, "bind_looked_up", lambda equation, arrays, cut: None)
    found = numeric_differences(lower(plan, fn, *args), fn, concrete_like(args))
    assert [one.reason.rpartition(", ")[2] for one in found] == [
        "where slices start beyond the end of a dimension",
        "where slices start below 0 of a dimension",
    ]
    verdict = verify(plan, fn, *args, concrete=concrete_like(args))
    assert verdict.collectives.agrees  # nobody else sees it
    assert not verdict.agrees


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8])
def test_starts_of_one_byte_are_clamped_within_their_type(dtype):
    def write(cache, new, position):
        return jax.lax.dynamic_update_slice(cache, new, (dtype(0), position))

    args = (shape(4, 120), shape(4, 1), shape(dtype=dtype))
    given = case(write, *args, mesh={"x": 8})
    lowered = lower(best_plan(given), write, *args)
    assert numeric_differences(lowered, write, concrete_like(args)) == []
