"""What the back ends write and read: no digit is lost, and no bound is rounded up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from autoshard.solve import evaluate
from autoshard.solve.backends import cbc, cp_sat, exact
from autoshard.solve.backends.exact import Solver, Verdict, solve_linear
from autoshard.solve.backends.judge import faults
from autoshard.solve.backends.linear import LinearModel, start_values
from autoshard.solve.backends.task import scaled
from autoshard.solve.problem import Edge, Node, Problem, Usage
from tests.solve.backends.models import SOLVERS, model_of, task_of
from tests.solve.helpers import random_problem


def test_scaling_loses_no_digit():
    model, _ = model_of(random_problem(9, shape="clique", tightness=0.5))
    task = task_of(model)
    small, scales = scaled(task)
    assert np.array_equal(small.costs * scales.cost, task.costs)
    each = np.repeat(scales.rows, np.diff(task.row_start))
    assert np.array_equal(small.coefficient * each, task.coefficient)
    assert np.array_equal(small.upper * scales.rows, task.upper)
    assert 5e5 <= np.abs(small.costs).max() <= 2e6
    tops = abs(sparse.csr_matrix((small.coefficient, small.column, small.row_start))).max(axis=1)
    tops = tops.toarray().ravel()
    assert ((tops[tops > 0] >= 1.0) & (tops[tops > 0] < 2.0)).all()


def test_cp_sat_gets_rows_that_the_task_implies():
    random = np.random.default_rng(2)
    matrix = sparse.csr_matrix(np.round(random.random((5, 4)), 3) * np.array([1, -1, 1, 1]))
    lower, upper = np.array([0.1, -np.inf, 0.2, 0.0, -np.inf]), np.array([np.inf, 1.1, 1.5, 2, 0.7])
    model = LinearModel(np.ones(4), np.ones(4, bool), matrix, lower, upper)
    rows = cp_sat.whole_rows(task_of(model))
    kept = 0
    for number in range(16):
        values = np.array([number >> k & 1 for k in range(4)])
        sums = matrix @ values
        if (lower <= sums).all() and (sums <= upper).all():
            kept += 1
            for columns, numbers, low, high in rows:
                assert low <= sum(np.array(numbers) * values[columns]) <= high
    assert 0 < kept < 16


def test_cp_sat_keeps_whole_numbers_as_they_are():
    costs, scale = cp_sat.whole_costs(np.array([3.0, 7e9, 0.0]), np.ones(3))
    assert (costs.tolist(), scale) == ([3, 7_000_000_000, 0], 1.0)
    costs, scale = cp_sat.whole_costs(np.array([0.3, -0.7]), np.ones(2))
    assert (costs / scale <= [0.3, -0.7]).all()
    assert costs / scale == pytest.approx([0.3, -0.7], rel=1e-13)


@pytest.mark.parametrize("seed", [0, 2, 4, 5])
def test_cp_sat_survives_sums_beyond_32_bits(seed):
    """Models that OR-Tools 9.15 calls infeasible, or solved at a higher price, if it is let."""
    random = np.random.default_rng(seed)
    nodes = tuple(Node(f"n{i}", random.random(4)) for i in range(20))
    edges = []
    for u, v in [(i, (i + step) % 20) for i in range(20) for step in (1, 4)]:
        table = random.random((4, 4))
        table[random.random((4, 4)) < 0.5] = np.inf
        table[0, :] = table[:, 0] = 0.0
        edges.append(Edge.dense(u, v, table))
    usages = tuple(Usage(i, np.round(random.random(4) ** 4 * 2**33), i, i + 4) for i in range(20))
    peak = evaluate(Problem(nodes, tuple(edges), usages), [0] * 20).peak
    model, flat = model_of(Problem(nodes, tuple(edges), usages, peak), scaled=False)
    assert faults(model, start_values(flat, model, np.zeros(20, dtype=np.int64))) == ""
    result = solve_linear(model, solver=Solver.CP_SAT, time_limit=60.0)
    assert result.verdict is Verdict.OPTIMAL, result.note
    assert result.objective == pytest.approx(solve_linear(model).objective, rel=1e-9)


@pytest.mark.parametrize(
    ("word", "bound"),
    [
        ("126.781", 126.78),
        ("126.78089),", 126.78088),
        ("-3", -4.0),
        ("1.25e+06", 1.24e6),
        ("1e+50", -np.inf),
        ("-1e+50", -np.inf),
        ("nonsense", -np.inf),
    ],
)
def test_bounds_that_cbc_prints_are_rounded_down(word, bound):
    assert cbc.printed_bound(word) == pytest.approx(bound, rel=1e-12)


def test_mps_holds_every_kind_of_row_and_every_digit():
    model = LinearModel(
        np.array([0.1, 0.0, -2.0]),
        np.array([True, False, True]),
        sparse.csr_matrix(np.array([[1, 1, 0], [0, 2, 3], [1, 0, 1], [0.3, 0, 0], [0, 0, 7.0]])),
        np.array([1.0, -np.inf, 0.5, 0.25, -np.inf]),
        np.array([1.0, 1 / 3, np.inf, 0.75, np.inf]),
    )
    assert cbc.mps_text(task_of(model)) == "\n".join(
        [
            "NAME task FREE",
            "ROWS", " N cost", " E r0", " L r1", " G r2", " L r3", " N r4",
            "COLUMNS",
            " x1 cost 0.0", " x1 r0 1.0", " x1 r1 2.0",
            " mark 'MARKER' 'INTORG'",
            " x0 cost 0.1", " x0 r0 1.0", " x0 r2 1.0", " x0 r3 0.3",
            " x2 cost -2.0", " x2 r1 3.0", " x2 r2 1.0", " x2 r4 7.0",
            " mark 'MARKER' 'INTEND'",
            "RHS", " side r0 1.0", " side r1 0.3333333333333333", " side r2 0.5", " side r3 0.75",
            "RANGES", " range r3 0.5",
            "BOUNDS", " UP bound x0 1.0", " UP bound x1 1.0", " UP bound x2 1.0",
            "ENDATA", "",
        ]
    )  # fmt: skip


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_kind_of_row_is_kept(solver, monkeypatch):
    """Equal, below, above, between and free rows, against all 0/1 values."""
    monkeypatch.setattr(exact, "APART_COEFFICIENTS", 0)
    random = np.random.default_rng(8)
    matrix = sparse.csr_matrix(random.integers(-3, 4, size=(5, 8)).astype(float))
    lower = np.array([1.0, -np.inf, -1.0, -2.0, -np.inf])
    upper = np.array([1.0, 2.0, np.inf, 1.0, np.inf])
    model = LinearModel(random.normal(size=8), np.ones(8, bool), matrix, lower, upper)
    plans = (np.arange(256)[:, None] >> np.arange(8) & 1).astype(float)
    sums = plans @ matrix.toarray().T
    kept = plans[((sums >= lower) & (sums <= upper)).all(axis=1)]
    assert 0 < len(kept) < 256
    result = solve_linear(model, solver=solver, time_limit=20.0)
    assert result.verdict is Verdict.OPTIMAL, result.note
    assert result.objective == pytest.approx((kept @ model.costs).min(), rel=1e-9)


@pytest.mark.parametrize(
    ("late", "verdict"), [(False, Verdict.INFEASIBLE), (True, Verdict.STOPPED)]
)
def test_what_cbc_concludes_after_the_limit_is_not_believed(late, verdict, knapsack):
    text = "Integer infeasible - objective value 126.46467519\n"
    answer = cbc._read(text, task_of(knapsack), 5.0, late)
    assert answer.verdict is verdict
    assert answer.bound == (5.0 if late else math.inf)


def test_solutions_of_cbc_are_read(knapsack):
    text = (
        "Stopped on time - objective value -1\n"
        "**      0 x1                      1                      -1\n"
    )
    answer = cbc._read(text, task_of(knapsack), -2.5, False)
    assert (answer.verdict, answer.bound) == (Verdict.STOPPED, -2.5)
    assert answer.values is not None
    assert answer.values.tolist() == [0.0, 1.0]


def test_without_a_program_cbc_says_where_to_get_one(knapsack, monkeypatch):
    monkeypatch.setattr(cbc.shutil, "which", lambda path: None)
    with pytest.raises(FileNotFoundError, match=r"PuLP .* finds no program .*coinor-cbc.*\[cbc\]"):
        solve_linear(knapsack, solver=Solver.CBC)
