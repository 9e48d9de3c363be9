"""Planned moves beside collectives: what counts as the same, and what does not."""

from __future__ import annotations

import functools

import pytest

from autoshard.compiler.hlo.collectives import HloCollective, collectives
from autoshard.compiler.hlo.text import read_module
from autoshard.compiler.moves import compare_moves
from autoshard.lower import lower
from autoshard.models import tiny
from autoshard.plan.plan import MeshShape, Move
from tests.compiler.hlo.dumps import mesh_of, texts
from tests.helpers import best_plan, case, sampled

MESH = MeshShape(("x", "y", "z"), (2, 4, 2))


def move(kind: str, axes: str, size: int, count: int = 1) -> Move:
    names = tuple(axes.split(","))
    return Move(kind, names, size, count, 0.0, 0.0, "step/layer", "model.py:7", "")


def made(kind: str, axes: str, size: int, count: int = 1) -> HloCollective:
    return HloCollective(
        kind, tuple(axes.split(",")), size, 2, count, scope="jit(step)/a", line="model.py:9"
    )


def outcome(planned, found) -> tuple[list[tuple[str, int, int]], bool]:
    comparison = compare_moves(planned, found, MESH)
    rows = [
        (f"{t.kind}({','.join(t.axes)}) {t.bytes}", t.planned, t.found)
        for t in comparison.tallies
        if t.planned != t.found
    ]
    return rows, not comparison.unplanned


@pytest.mark.parametrize(
    ("planned", "found"),
    [
        ([move("all_gather", "x,y", 64, 3)], [made("all_gather", "x,y", 64, 3)]),
        ([move("all_gather", "y,x", 64)], [made("all_gather", "x,y", 64)]),
        ([move("all_slice", "x", 64)], []),
        ([move("all_gather", "x", 64)] * 2, [made("all_gather", "x", 64, 2)]),
        # A sum of which a shard is all that is read.
        ([move("all_reduce", "x", 32, 2)], [made("reduce_scatter", "x", 32, 2)]),
        (
            [move("all_reduce", "x,y", 32)],
            [made("reduce_scatter", "y", 32), made("all_reduce", "x", 8)],
        ),
        (
            [move("all_reduce", "x,y", 32)],
            [made("all_reduce", "x", 32), made("reduce_scatter", "y", 32)],
        ),
        # Parts of axes, one after the other.
        (
            [move("all_gather", "x,y", 64, 3)],
            [made("all_gather", "y", 64, 3), made("all_gather", "x", 16, 3)],
        ),
        (
            [move("all_gather", "x,y,z", 64)],
            [
                made("all_gather", "z", 64),
                made("all_gather", "x", 32),
                made("all_gather", "y", 16),
            ],
        ),
        (
            [move("reduce_scatter", "x,y", 64)],
            [made("reduce_scatter", "x", 64), made("reduce_scatter", "y", 32)],
        ),
        (
            [move("all_reduce", "x,y", 64)],
            [made("all_reduce", "x", 64), made("all_reduce", "y", 64)],
        ),
        (
            [move("all_to_all", "x,y", 64)],
            [made("all_to_all", "y", 64), made("all_to_all", "x", 64)],
        ),
        (
            [move("all_gather", "y", 64)],
            [made("all_gather", "y:(1)2", 64), made("all_gather", "y:(2)2", 32)],
        ),
    ],
)  # fmt: skip
def test_what_means_the_same(planned, found):
    assert outcome(planned, found) == ([], True)


@pytest.mark.parametrize(
    ("planned", "found", "rows"),
    [
        ([], [made("all_gather", "x", 64)], [("all_gather(x) 64", 0, 1)]),
        (
            [move("all_gather", "x", 64)],
            [made("all_gather", "y", 64)],
            [("all_gather(x) 64", 1, 0), ("all_gather(y) 64", 0, 1)],
        ),
        (
            [move("all_gather", "x", 64)],
            [made("all_gather", "x", 128)],
            [("all_gather(x) 128", 0, 1), ("all_gather(x) 64", 1, 0)],
        ),
        # Parts whose bytes do not fit together.
        (
            [move("all_gather", "x,y", 64)],
            [made("all_gather", "y", 64), made("all_gather", "x", 64)],
            [("all_gather(x) 64", 0, 1), ("all_gather(x,y) 64", 1, 0), ("all_gather(y) 64", 0, 1)],
        ),
        # Of a planned shard, the whole sum.
        (
            [move("reduce_scatter", "x", 32)],
            [made("all_reduce", "x", 32)],
            [("all_reduce(x) 32", 0, 1), ("reduce_scatter(x) 32", 1, 0)],
        ),
        (
            [move("all_gather", "x", 64, 2)],
            [made("all_gather", "x", 64, 5), made("ragged_all_to_all", "x", 8)],
            [("all_gather(x) 64", 2, 5), ("ragged_all_to_all(x) 8", 0, 1)],
        ),
    ],
)
def test_what_was_not_planned(planned, found, rows):
    assert outcome(planned, found) == (rows, False)


def test_what_is_not_made_is_missing_and_no_fault():
    rows, fine = outcome([move("all_gather", "x", 64, 2)], [made("all_gather", "x", 64)])
    assert (rows, fine) == ([("all_gather(x) 64", 2, 1)], True)


def test_places_are_named():
    comparison = compare_moves([], [made("all_gather", "x", 64)], MESH)
    assert str(comparison).splitlines()[-1].endswith("jit(step)/a model.py:9")


@functools.cache
def partitioned(name: str, sizes: tuple[int, ...]):
    step = tiny(name)
    mesh = dict(zip("xyz", sizes, strict=False))
    plan = best_plan(case(step.fn, *step.args, mesh=mesh, **step.options))
    devices = list(mesh_of(mesh).devices.reshape(-1))
    lowered = lower(plan, step.fn, *step.args, devices=devices)
    return plan, texts(lowered.lower())[0]


@pytest.mark.parametrize(
    ("name", "sizes"),
    sampled(
        [
            ("mlp", (2, 4)),
            ("mlp", (2, 2, 2)),
            ("llama3-8b", (8,)),
            ("llama3-8b", (2, 4)),
            ("vit-l16", (2, 4)),
        ],
        lambda one: one[0] != "vit-l16" and one[1] != (8,),
    ),
)
def test_right_after_partitioning_a_plan_has_its_moves(name, sizes):
    """The partitioner on the one side, the plan's own list on the other."""
    plan, text = partitioned(name, sizes)
    records = collectives(read_module(text), plan.mesh)
    comparison = compare_moves(plan.moves, records, plan.mesh)
    assert comparison.agrees, str(comparison)
    assert sum(tally.found for tally in comparison.tallies) > 4
