"""How often loops turn: as the user says, or once and with a warning."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from autoshard.program.trace import trace
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
        "count and is counted once: pass trip_counts=… with its number of iterations"
        for number in warned
    ]
    lengths = [
        region.trips // program.regions[region.parent].trips for region in program.regions[1:]
    ]
    assert all(lengths[number] == 1 for number in warned)
