"""How often loops turn: as the user says, or once and with a warning."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.program.trace import TraceError, trace
from tests.program.functions import two_loops
from tests.program.steps import f, lines_of, of_kind


@pytest.mark.parametrize(
    ("trip_counts", "expected"),
    [
        (3, {"sin": 3, "exp": 9, "cos": 3}),
        ((2, 5, 7), {"sin": 2, "exp": 10, "cos": 7}),
        ([2, 5, 0], {"sin": 2, "exp": 10, "cos": 0}),
        ({"inner": 4, "outer": 6, "last": 1}, {"sin": 6, "exp": 24, "cos": 1}),
        ({"outer/inner": 4, "outer": 6, "last": 1}, {"sin": 6, "exp": 24, "cos": 1}),
    ],
)
def test_trip_counts_of_while_loops(trip_counts: Any, expected: dict[str, int]) -> None:
    program = trace(two_loops, f(8), trip_counts=trip_counts)
    assert {name: of_kind(program, name)[0].trips for name in expected} == expected
    assert [region.kind for region in program.regions] == ["step", "while", "while", "while"]
    assert [region.parent for region in program.regions] == [-1, 0, 1, 0]


@pytest.mark.parametrize(
    ("trip_counts", "warned"),
    [((), [0, 1, 2]), ((3,), [1, 2]), ({"outer": 3}, [2]), ({"elsewhere": 3}, [0, 1, 2])],
)
def test_a_while_loop_without_a_trip_count_is_counted_once_with_a_warning(
    trip_counts: Any, warned: list[int]
) -> None:
    first = lines_of(two_loops)[0]
    lines = [first + 6, first + 3, first + 8]
    scopes = ["outer", "outer/inner", "last"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = trace(two_loops, f(8), trip_counts=trip_counts)
    assert [str(entry.message) for entry in caught] == [
        f"while loop {number} at {scopes[number]} (functions.py:{lines[number]}) has no trip "
        "count and is counted once: pass its number of iterations, such as "
        f"trip_counts={{{number}: 100}}"
        for number in warned
    ]
    lengths = [
        region.trips // program.regions[region.parent].trips for region in program.regions[1:]
    ]
    assert all(lengths[number] == 1 for number in warned)


def counts(start: int, bound: int, step: int, test: Any = jnp.less) -> Any:
    def run(x):
        return lax.while_loop(
            lambda c: test(c[0], bound), lambda c: (c[0] + step, jnp.sin(c[1])), (start, x)
        )[1]

    return run


@pytest.mark.parametrize(
    ("start", "bound", "step", "test", "trips"),
    [
        (0, 6, 1, jnp.less, 6),
        (2, 9, 3, jnp.less, 3),
        (0, 6, 2, jnp.less_equal, 4),
        (7, 7, 1, jnp.less, 0),
    ],
)
def test_a_loop_from_one_literal_to_another_needs_no_trip_count(start, bound, step, test, trips):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = trace(counts(start, bound, step, test), f(8))
    assert of_kind(program, "sin")[0].trips == trips


def counted_to(x, n):
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]


@pytest.mark.parametrize("key", [1, "1"])
def test_loops_go_by_their_number_too_and_plans_keep_it(key):
    def two(x, n):
        return counted_to(counted_to(x, n), 5)

    def three(x, n):
        return counted_to(two(x, n), n)

    n = jax.ShapeDtypeStruct((), jnp.int32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = trace(two, f(8), n, trip_counts={0: 4})
        third = trace(three, f(8), n, trip_counts={"0": 2, 2: 3})
        trace(three, f(8), n, trip_counts={key: 4})
    assert [op.trips for op in of_kind(program, "sin")] == [4, 5]
    assert [op.trips for op in of_kind(third, "sin")] == [2, 5, 3]
    assert [str(entry.message)[:12] for entry in caught] == ["while loop 0", "while loop 2"]
    assert program.options == {"trip_counts": {"0": 4}}
    assert trace(two, f(8), n, **program.options).fingerprint == program.fingerprint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {3: 2, 0: 1},
            "trip_counts names while loop 3, but the program has 1 of them, counted from 0",
        ),
        ({0: -2}, "trip_counts[0] is -2; a trip count is a whole number from 0 on"),
        ([2.5], "trip_counts[0] is 2.5; a trip count is a whole number from 0 on"),
        ("often", "trip_counts is 'often'; a trip count is a whole number from 0 on"),
    ],
)
def test_trip_counts_of_no_loop_or_no_number_are_refused(given, message):
    with pytest.raises(TraceError) as caught:
        trace(counted_to, f(8), jax.ShapeDtypeStruct((), jnp.int32), trip_counts=given)
    assert str(caught.value) == message
