"""Collectives in their plainest form, and those that are planned beside those that are found."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import pytest

from autoshard.lower.collectives import Collective, explicit_collectives
from autoshard.lower.compare import Comparison, compare, normalise
from tests.lower.constrained import STACK, STATE, W, X, loop, lower, moves, put

# -- normalise ---------------------------------------------------------------------------------


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


# -- compare -----------------------------------------------------------------------------------


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
