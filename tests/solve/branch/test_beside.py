"""Passes and splits in turns."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from autoshard.solve.branch.beside import Beside
from autoshard.solve.branch.tree import Tree
from autoshard.solve.dual import DualAscent
from autoshard.solve.flat import flatten
from tests.solve.branch.test_tree import plans, rival_plans


def test_both_go_on_until_neither_has_more_to_do():
    problem = rival_plans(3)
    flat = flatten(problem)
    best = min(plans(problem).values())
    dual, tree = DualAscent(flat), Tree(flat, best)
    Beside(dual, tree).run(best, -math.inf, math.inf)
    assert dual.settled
    assert dual.bound < best == tree.bound
    alone = DualAscent(flat)
    Beside(alone, None).run(best, -math.inf, math.inf)
    assert alone.settled
    assert alone.bound == pytest.approx(dual.bound, rel=1e-3)


def test_neither_goes_on_once_stopped():
    flat = flatten(rival_plans(3))
    dual, tree = DualAscent(flat), Tree(flat, 40.0)
    beside = Beside(dual, tree)
    beside.stop()
    beside.run(40.0, -math.inf, math.inf)
    assert dual.passes == 0
    assert not tree.begun
    beside.go_on()
    beside.run(40.0, -math.inf, time.monotonic())
    assert not tree.splits


def test_both_end_where_no_plan_keeps_the_limit():
    problem = rival_plans(2)
    flat = flatten(
        replace(problem, usages=tuple(replace(u, amounts=u.amounts + 30.0) for u in problem.usages))
    )
    dual = DualAscent(flat)
    dual.run(math.inf, math.inf, 500)
    assert dual.bound > dual.worst
    Beside(dual, Tree(flat, 40.0)).run(40.0, -math.inf, math.inf)
    assert dual.passes <= 500
