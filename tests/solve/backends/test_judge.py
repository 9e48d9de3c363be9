"""What solvers claim, judged: what breaks the model is named and not believed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autoshard.solve.backends.exact import Verdict
from autoshard.solve.backends.judge import faults, judged
from autoshard.solve.backends.task import Answer


def test_values_that_break_rows_are_reported_and_not_believed(knapsack):
    lie = Answer(Verdict.OPTIMAL, -3.0, np.array([1.0, 1.0]))
    result = judged(knapsack, lie, None)
    assert (result.verdict, result.values) == (Verdict.BROKEN, None)
    assert (result.objective, result.bound) == (math.inf, -math.inf)
    assert result.note == "2 broken rows: row 0 sums to 2 instead of -inf to 1"


def test_every_kind_of_fault_is_named(knapsack):
    assert faults(knapsack, np.array([1.0, 0.0])) == ""
    assert faults(knapsack, np.array([0.5, 0.5]), relax=True) == ""
    assert faults(knapsack, np.zeros(3)) == "values of shape (3,) for 2 variables"
    assert faults(knapsack, np.array([np.nan, 0.0])) == "values that are not finite: 1 of 2"
    assert faults(knapsack, np.array([0.25, 2.0])) == (
        "variable 1 is 2, outside of 0 to 1; variable 0 is 0.25, not a whole number; "
        "1 broken row: row 0 sums to 2 instead of -inf to 1"
    )


def test_values_are_rounded_before_they_are_priced(knapsack):
    near = Answer(Verdict.OPTIMAL, -2.0, np.array([1.0 - 1e-8, 1e-8]))
    result = judged(knapsack, near, None)
    assert result.verdict is Verdict.OPTIMAL
    assert (result.objective, result.bound) == (-2.0, -2.0)
    assert result.values is not None
    assert result.values.tolist() == [1.0, 0.0]


def test_known_values_refute_infeasibility(knapsack):
    start = np.array([0.0, 1.0])
    result = judged(knapsack, Answer(Verdict.INFEASIBLE, np.inf), start)
    assert (result.verdict, result.objective, result.bound) == (Verdict.BROKEN, -1.0, -math.inf)
    assert result.note == "no solution is said to exist, but one is known"


def test_known_values_refute_a_bound(knapsack):
    start = np.array([1.0, 0.0])
    claim = Answer(Verdict.OPTIMAL, -1.0, np.array([0.0, 1.0]))
    result = judged(knapsack, claim, start)
    assert (result.verdict, result.objective, result.bound) == (Verdict.BROKEN, -2.0, -math.inf)
    assert result.note == "nothing is said to cost less than -1, but one solution costs -2"


def test_an_optimum_without_values_is_no_optimum(knapsack):
    result = judged(knapsack, Answer(Verdict.OPTIMAL, -2.0), None)
    assert (result.verdict, result.bound) == (Verdict.BROKEN, -math.inf)


def test_a_model_must_fit_together(knapsack):
    with pytest.raises(
        ValueError, match=r"2 rows, 2 variables: costs has shape \(1,\), not \(2,\)"
    ):
        replace(knapsack, costs=np.zeros(1))
    with pytest.raises(ValueError, match="upper holds nan"):
        replace(knapsack, upper=np.array([np.nan, 1.0]))
    with pytest.raises(ValueError, match="costs must be finite"):
        replace(knapsack, costs=np.array([np.inf, 1.0]))
