"""Fingerprints and options: what makes two programs one, and what it takes to trace one again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

from autoshard.program.trace import trace
from tests.program.functions import base, two_loops
from tests.program.steps import f


def test_equal_programs_have_equal_fingerprints() -> None:
    def named_otherwise(left, right):
        product = left @ right
        return jnp.tanh(product)

    one = trace(base, f(8, 16), f(16, 4))
    two = trace(named_otherwise, f(8, 16), f(16, 4), name="other")
    assert one.fingerprint == two.fingerprint
    assert len(one.fingerprint) == 16
    assert (one.name, two.name) == ("base", "other")


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (base, (f(8, 16), f(16, 5))),
        (base, (f(8, 16, dtype=jnp.bfloat16), f(16, 4, dtype=jnp.bfloat16))),
        (lambda x, w: jnp.sin(x @ w), (f(8, 16), f(16, 4))),
        (lambda x, w: jnp.tanh(x) @ w, (f(8, 16), f(16, 4))),
        (lambda x, w: (jnp.tanh(x @ w), x), (f(8, 16), f(16, 4))),
        (lambda w, x: base(x, w), (f(16, 4), f(8, 16))),
    ],
)
def test_other_shapes_and_other_code_have_other_fingerprints(
    fn: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    assert trace(fn, *args).fingerprint != trace(base, f(8, 16), f(16, 4)).fingerprint


def test_other_trip_counts_have_other_fingerprints() -> None:
    prints = {trace(two_loops, f(8), trip_counts=count).fingerprint for count in (1, 2, (2, 2, 1))}
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"trip_counts": 3}, {"trip_counts": 3}),
        ({"trip_counts": (2, 3, 4)}, {"trip_counts": [2, 3, 4]}),
        (
            {"trip_counts": {"inner": 2, "outer": 3, "last": 4}},
            {"trip_counts": {"inner": 2, "outer": 3, "last": 4}},
        ),
        (
            {"trip_counts": 3, "donate_argnums": 0},
            {"trip_counts": 3, "donate_argnums": [0]},
        ),
    ],
)
def test_options_survive_a_round_trip(given: dict[str, Any], kept: dict[str, Any]) -> None:
    program = trace(two_loops, f(8), **given)
    assert program.options == kept
    again = trace(two_loops, f(8), **json.loads(json.dumps(program.options)))
    assert again.options == program.options
    assert again.fingerprint == program.fingerprint
    assert again.ties == program.ties
    assert again.donated == program.donated


def test_a_program_that_was_told_nothing_keeps_no_options() -> None:
    assert trace(base, f(8, 16), f(16, 4)).options == {}
