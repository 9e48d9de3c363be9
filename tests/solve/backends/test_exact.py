"""The exact solvers behind their one interface: against brute force, and when they misbehave."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from autoshard.solve import evaluate
from autoshard.solve.backends import apart, cbc, cp_sat, exact, highs
from autoshard.solve.backends.exact import Solver, Verdict, solve_linear
from autoshard.solve.backends.judge import dual_bound, faults, judged
from autoshard.solve.backends.linear import LinearModel, linear_model, start_values, with_memory
from autoshard.solve.backends.task import Answer, Task, scaled
from autoshard.solve.flat import Flat, flatten
from autoshard.solve.problem import Edge, Node, Problem, Usage
from tests.solve.helpers import brute_force, random_problem

SOLVERS = list(Solver)


def model_of(problem: Problem, *, scaled: bool = True) -> tuple[LinearModel, Flat]:
    flat = flatten(problem)
    rows = np.arange(flat.capacity.size)
    return with_memory(linear_model(flat), flat, rows, scaled=scaled), flat


def task_of(model: LinearModel, **changes) -> Task:
    matrix = model.matrix
    task = Task(
        model.costs, model.integer, model.top, matrix.indptr, matrix.indices, matrix.data,
        model.lower, model.upper, time.monotonic() + 20.0, 1, False, None,
    )  # fmt: skip
    return replace(task, **changes)


def picked_by(flat: Flat, values: np.ndarray) -> list[int]:
    return [int(values[slice(*flat.span(i))].argmax()) for i in range(flat.node_count)]


def hard_problem(count: int = 60, choices: int = 12) -> Problem:
    """A ring with chords and tight memory: no solver here is done with it soon."""
    random = np.random.default_rng(7)
    nodes = tuple(Node(f"n{i}", random.random(choices)) for i in range(count))
    pairs = [(i, (i + step) % count) for i in range(count) for step in (1, 4, 9)]
    edges = tuple(Edge.dense(u, v, random.random((choices, choices))) for u, v in pairs)
    usages = tuple(
        Usage(i, random.integers(1, 50, choices).astype(float), i, i + 12) for i in range(count)
    )
    return Problem(nodes, edges, usages, 260.0)


@pytest.fixture(scope="module")
def hard() -> LinearModel:
    return model_of(hard_problem())[0]


def children() -> set[int]:
    """The processes that this one has started and that are still there, dead ones included."""
    words = ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lines = [line.split(None, 1) for line in found.splitlines()]
    return {int(pid) for pid, command in lines if command != "ps"}


# -- the answers ---------------------------------------------------------------------------------


def check_against_brute_force(problem: Problem, solver: Solver) -> Verdict:
    best = brute_force(problem)
    model, flat = model_of(problem)
    result = solve_linear(model, solver=solver, time_limit=20.0)
    if math.isinf(best):
        assert (result.verdict, result.values) == (Verdict.INFEASIBLE, None), result.note
        assert result.bound == math.inf
        return result.verdict
    assert result.verdict is Verdict.OPTIMAL, result.note
    assert result.objective + problem.offset == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert result.bound + problem.offset == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert result.bound <= result.objective
    assert result.values is not None
    assert set(result.values[model.integer]) <= {0.0, 1.0}
    found = evaluate(problem, picked_by(flat, result.values))
    assert found.feasible
    assert found.objective == pytest.approx(best, rel=1e-9, abs=1e-9)
    return result.verdict


@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from(["random", "tree", "grid", "clique"]),
    forbidden=st.sampled_from([0.0, 0.1, 0.2]),
    tightness=st.sampled_from([None, 0.6, 0.8]),
    integers=st.booleans(),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_highs_equals_brute_force(seed, shape, forbidden, tightness, integers):
    problem = random_problem(
        seed, shape=shape, forbidden=forbidden, tightness=tightness, integers=integers
    )
    check_against_brute_force(problem, Solver.HIGHS)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_equals_brute_force_in_a_process_of_its_own(solver, monkeypatch):
    monkeypatch.setattr(exact, "APART_COEFFICIENTS", 0)
    shapes = ("clique", "grid", "tree", "random")
    verdicts = [
        check_against_brute_force(
            random_problem(seed, shape=shapes[seed % 4], forbidden=0.1, tightness=0.6), solver
        )
        for seed in (3, 5, 8, 14, 19)
    ]
    assert verdicts == [Verdict.INFEASIBLE, *[Verdict.OPTIMAL] * 4]


@pytest.mark.parametrize("solver", SOLVERS)
def test_large_numbers_keep_their_meaning(solver, monkeypatch):
    """Costs up to 1e10 beside differences of one, and bytes beside limits of 1e10."""
    monkeypatch.setattr(exact, "APART_COEFFICIENTS", 0)
    small = random_problem(22, shape="clique", forbidden=0.1, tightness=0.5, integers=True)
    assert small.limit is not None
    problem = Problem(
        tuple(Node(n.name, n.costs + 1e10 * (np.arange(n.costs.size) > 1)) for n in small.nodes),
        small.edges,
        tuple(Usage(u.node, u.amounts * 1e9, u.start, u.stop) for u in small.usages),
        small.limit * 1e9,
    )
    assert check_against_brute_force(problem, solver) is Verdict.OPTIMAL


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_model_without_variables(solver):
    empty = LinearModel(
        np.zeros(0), np.zeros(0, bool), sparse.csr_matrix((1, 0)), np.zeros(1), np.ones(1)
    )
    result = solve_linear(empty, solver=solver)
    assert (result.verdict, result.objective, result.bound) == (Verdict.OPTIMAL, 0.0, 0.0)
    unreachable = replace(empty, lower=np.ones(1))
    assert solve_linear(unreachable, solver=solver).verdict is Verdict.INFEASIBLE


@given(seed=st.integers(0, 10**6), tightness=st.sampled_from([None, 0.5]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_bound_of_a_relaxation_holds_and_is_its_optimum(seed, tightness):
    problem = random_problem(seed, shape="clique", forbidden=0.2, tightness=tightness)
    best = brute_force(problem)
    model, _ = model_of(problem)
    result = solve_linear(model, relax=True)
    if result.verdict is Verdict.INFEASIBLE:
        assert math.isinf(best)
        return
    assert result.verdict is Verdict.OPTIMAL
    assert result.bound + problem.offset <= best + 1e-9
    assert result.bound == pytest.approx(result.objective, rel=1e-9, abs=1e-9)
    assert result.row_duals is not None
    # Any other prices prove a bound too, if a weaker one.
    random = np.random.default_rng(seed)
    duals = result.row_duals + random.normal(size=result.row_duals.size)
    assert dual_bound(model, duals) <= result.objective + 1e-9


def test_row_duals_are_in_units_of_the_rows_as_given():
    # One unit of y1 saves 3; the row allows 1024 * y1 <= 512: one more of the side saves 3 / 1024.
    model = LinearModel(
        np.array([-3.0]),
        np.array([True]),
        sparse.csr_matrix(np.array([[1024.0]])),
        np.array([-np.inf]),
        np.array([512.0]),
    )
    result = solve_linear(model, relax=True)
    assert result.objective == pytest.approx(-1.5)
    assert result.row_duals == pytest.approx([-3.0 / 1024.0])


# -- starts --------------------------------------------------------------------------------------


def known_start(problem: Problem) -> tuple[LinearModel, np.ndarray, float]:
    model, flat = model_of(problem)
    picked = np.array([int(u.amounts.argmin()) for u in problem.usages])
    start = start_values(flat, model, picked)
    assert faults(model, start) == ""
    return model, start, float(start @ model.costs)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_start_is_never_lost(solver):
    model, start, price = known_start(hard_problem())
    result = solve_linear(model, solver=solver, time_limit=2.0, start=start)
    assert result.verdict is Verdict.STOPPED, result.note
    assert result.objective <= price
    assert result.bound <= result.objective
    assert result.values is not None
    assert faults(model, result.values) == ""


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_limit_at_all(solver, knapsack, monkeypatch):
    monkeypatch.setattr(exact, "APART_COEFFICIENTS", 0)
    result = solve_linear(knapsack, solver=solver, time_limit=math.inf)
    assert (result.verdict, result.objective) == (Verdict.OPTIMAL, -2.0), result.note


def test_no_time_leaves_the_start():
    model, start, price = known_start(hard_problem())
    result = solve_linear(model, time_limit=0.0, start=start)
    assert (result.verdict, result.objective, result.bound) == (Verdict.STOPPED, price, -math.inf)


def test_a_start_that_breaks_the_model_is_left_out():
    model, _ = model_of(random_problem(5, shape="clique", forbidden=0.1, tightness=0.5))
    assert faults(model, np.zeros(model.size))
    result = solve_linear(model, start=np.zeros(model.size))
    plain = solve_linear(model)
    assert (result.verdict, result.objective) == (plain.verdict, plain.objective)


# -- claims --------------------------------------------------------------------------------------


@pytest.fixture
def knapsack() -> LinearModel:
    """minimise -2 a - b  with  a + b <= 1 and 3 a + 2 b <= 4; the best is a alone, at -2."""
    return LinearModel(
        np.array([-2.0, -1.0]),
        np.array([True, True]),
        sparse.csr_matrix(np.array([[1.0, 1.0], [3.0, 2.0]])),
        np.array([-np.inf, -np.inf]),
        np.array([1.0, 4.0]),
    )


def test_values_that_break_rows_are_reported_and_not_believed(knapsack):
    lie = Answer(Verdict.OPTIMAL, -3.0, np.array([1.0, 1.0]))
    result = judged(knapsack, lie, None)
    assert (result.verdict, result.values) == (Verdict.BROKEN, None)
    assert (result.objective, result.bound) == (math.inf, -math.inf)
    assert result.note == "2 rows are broken: row 0 sums to 2 instead of -inf to 1"


def test_every_kind_of_fault_is_named(knapsack):
    assert faults(knapsack, np.array([1.0, 0.0])) == ""
    assert faults(knapsack, np.array([0.5, 0.5]), relax=True) == ""
    assert faults(knapsack, np.zeros(3)) == "values of shape (3,) for 2 variables"
    assert faults(knapsack, np.array([np.nan, 0.0])) == "1 values are not finite"
    assert faults(knapsack, np.array([0.25, 2.0])) == (
        "variable 1 is 2, outside of 0 to 1; variable 0 is 0.25, not a whole number; "
        "1 rows are broken: row 0 sums to 2 instead of -inf to 1"
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


# -- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_solver_ends_when_the_caller_has_enough(solver, hard):
    before = children()
    calls = 0

    def meanwhile() -> bool:
        nonlocal calls
        calls += 1
        time.sleep(0.05)
        return calls < 5

    result = solve_linear(hard, solver=solver, time_limit=60.0, meanwhile=meanwhile)
    assert (result.verdict, calls) == (Verdict.STOPPED, 5)
    assert children() == before


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_interrupt_leaves_no_process(solver, hard):
    before = children()
    working: set[int] = set()

    def meanwhile() -> bool:
        time.sleep(0.05)
        working.update(children() - before)
        if not working:
            return True
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve_linear(hard, solver=solver, time_limit=60.0, meanwhile=meanwhile)
    assert working
    assert children() == before


@pytest.mark.parametrize("solver", [Solver.HIGHS, Solver.CP_SAT, Solver.CBC])
def test_news_come_while_a_solver_runs(solver, monkeypatch):
    monkeypatch.setattr(exact, "APART_COEFFICIENTS", 0)
    model, _ = model_of(hard_problem(40, 6))
    told = []

    def until_told() -> bool:
        time.sleep(0.02)
        return not told or not np.isfinite(told[-1].bound)

    result = solve_linear(
        model, solver=solver, time_limit=60.0, news=told.append, meanwhile=until_told
    )
    assert result.verdict is Verdict.STOPPED, result.note
    assert all(news.verdict is Verdict.STOPPED for news in told)
    assert told[-1].bound <= result.bound <= result.objective
    assert result.handover_seconds > 0.0


def task_for(body: str, tmp_path, monkeypatch) -> Task:
    """A task, and a back end `misbehaving` with the given body of `solve`."""
    lines = "\n    ".join(body.split("\n"))
    imported = "from autoshard.solve.backends.task import Answer, Verdict"
    code = f"{imported}\n\ndef solve(task, tell):\n    {lines}\n"
    (tmp_path / "misbehaving.py").write_text(code)
    start = "import autoshard.solve.backends as own, sys; own.__path__.append(sys.argv[1]); "
    start += "from autoshard.solve.backends.apart import main; main('misbehaving')"

    def popen(words, **options):
        return subprocess.Popen([sys.executable, "-P", "-c", start, str(tmp_path)], **options)

    shim = SimpleNamespace(Popen=popen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(apart, "subprocess", shim)
    return task_of(model_of(random_problem(3))[0])


def nothing_to_say(bound, values) -> None:
    pass


def ask_until_told(task: Task) -> Answer:
    """Ask the misbehaving solver, and end it once it has told two bounds."""
    told = []

    def keep_going() -> bool:
        time.sleep(0.02)
        return len(told) < 2

    return apart.ask(
        "misbehaving", task, lambda bound, values: told.append((bound, values)), keep_going
    )


def test_a_solver_that_hangs_is_ended_at_its_deadline(tmp_path, monkeypatch):
    task = task_for("import time\ntime.sleep(600)", tmp_path, monkeypatch)
    before = children()
    task = replace(task, deadline=time.monotonic() + 0.5)
    assert apart.ask("misbehaving", task, nothing_to_say).verdict is Verdict.STOPPED
    assert children() == before


def test_what_a_solver_told_before_it_was_ended_is_kept(tmp_path, monkeypatch):
    body = "import time\ntell(2.0, task.costs)\ntell(1.0, None)\ntime.sleep(600)"
    task = task_for(body, tmp_path, monkeypatch)
    answer = ask_until_told(task)
    assert (answer.verdict, answer.bound) == (Verdict.STOPPED, 2.0)
    assert answer.values is not None
    assert np.array_equal(answer.values, task.costs)


def test_what_a_solver_started_ends_with_it(tmp_path, monkeypatch):
    body = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "tell(0.0, None)\n"
        "tell(float(child.pid), None)\n"
        "time.sleep(600)"
    )
    answer = ask_until_told(task_for(body, tmp_path, monkeypatch))
    words = ["ps", "-o", "stat=", "-p", str(int(answer.bound))]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.stdout.strip()[:1] in ("", "Z")  # Z: gone, and left to init


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("raise ValueError('no such thing\\nat all')", "ValueError: no such thing"),
        ("raise MemoryError", "MemoryError"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "exit code -11"),
        ("import sys\nprint('all is lost', file=sys.stderr)\nsys.exit(3)", "all is lost"),
        ("print('not for you')\nreturn Answer(Verdict.STOPPED, 3.0)", None),
    ],
)
def test_a_solver_that_fails_says_why(body, note, tmp_path, monkeypatch):
    answer = apart.ask("misbehaving", task_for(body, tmp_path, monkeypatch), nothing_to_say)
    if note is None:
        assert (answer.verdict, answer.bound) == (Verdict.STOPPED, 3.0)
    else:
        assert answer.verdict is Verdict.FAILED
        assert note in answer.note


def test_a_child_without_a_parent_ends_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(apart, "GRACE_SECONDS", 600.0)
    body = "import time\ntime.sleep(600)"
    task = task_for(body, tmp_path, monkeypatch)
    # Nobody ends it before its own timer does, ORPHAN_SECONDS after the deadline.
    deadline = time.monotonic() - apart.ORPHAN_SECONDS + 1.5
    answer = apart.ask("misbehaving", replace(task, deadline=deadline), nothing_to_say)
    assert answer.verdict is Verdict.FAILED
    assert "exit code -14" in answer.note


def test_a_highs_that_does_not_listen_does_not_block_the_next(hard, knapsack, monkeypatch):
    """What is left to its thread must not keep others from being solved."""
    monkeypatch.setattr(highs, "PATIENCE_SECONDS", 0.0)
    release = threading.Event()

    class Deaf(highs._Listener):
        def _ask(self, event):
            release.wait()
            event.interrupt(True)

    monkeypatch.setattr(highs, "_Listener", Deaf)
    task, _ = scaled(task_of(hard, deadline=time.monotonic() + 0.5))
    try:
        assert highs.solve(task, nothing_to_say).verdict is Verdict.STOPPED
        monkeypatch.undo()
        assert solve_linear(knapsack).objective == -2.0
    finally:
        release.set()


# -- what the back ends write and read -------------------------------------------------------------


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
