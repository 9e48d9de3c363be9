"""`autoshard bench solvers`: every solver on the same problem, and none believed as it is."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli.bench import load_benchmark
from autoshard.cli.main import main
from tests.cli.helpers import refused
from tests.helpers import LONG

SOLVERS = load_benchmark("solvers")
ROW = load_benchmark("solver_row")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contest(path: str, **changes: Any) -> None:
    """A ring of four nodes on which memory and forbidden pairs bind; the best plan costs 19."""
    forbidden = 10**18
    problem = {
        "name": path,
        "nodes": {
            "intervals": [[0, 3], [1, 4], [2, 5], [0, 5]],
            "costs": [[9, 4, 1], [8, 3, 1], [7, 2, 1], [6, 5, 1]],
            "usages": [[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]],
        },
        "edges": {
            "nodes": [[0, 1], [1, 2], [2, 3], [3, 0]],
            "costs": [[0, 1, forbidden, 1, 0, 1, forbidden, 1, 0]] * 4,
        },
        "usage_limit": 7,
    }
    Path(path).write_text(json.dumps({"problem": problem | changes}))


def asked(**changes: Any) -> dict[str, Any]:
    row = {
        "problem": "ring.json", "form": "given", "solver": "HiGHS", "threads": 1,
        "time_limit": 20.0, "memory_limit": 2.0**33,
    }  # fmt: skip
    return row | changes


def brute_force(path: str) -> float:
    import itertools

    from autoshard.solve import evaluate
    from autoshard.solve.iopddl import read

    problem = read(path).problem
    plans = itertools.product(*(range(node.costs.size) for node in problem.nodes))
    return min(found.objective for plan in plans if (found := evaluate(problem, plan)).feasible)


@LONG
def test_all_solvers_agree_in_one_run(capfd):
    contest("ring.json")
    best = brute_force("ring.json")
    words = ["--time-limit", "20", "--csv", "r.csv", "--threads", "1"]
    assert main(["bench", "solvers", "ring.json", *words]) == 0
    out, err = capfd.readouterr()
    lines = out.rstrip().split("\n")
    assert lines[0].startswith("1 threads each (SCIP: 1; autoshard: 2), 20 s, 8.0 GiB, ")
    assert lines[1].split() == [heading for _, heading, _, _ in SOLVERS.COLUMNS]
    assert err == "autoshard: wrote r.csv\n"
    with Path("r.csv").open() as file:
        rows = list(csv.DictReader(file))
    others = ["CP-SAT", "HiGHS", "CBC", "SCIP"]
    assert [row["solver"] for row in rows] == ["autoshard", *others, *others]
    assert [row["form"] for row in rows] == ["", *["given"] * 4, *["presolved"] * 4]
    assert {row["status"] for row in rows} == {"optimal"}, rows
    assert {float(row["objective"]) for row in rows} == {best}
    assert all(float(row["bound"]) <= best for row in rows)
    assert all(float(row["peak_gib"]) > 0 for row in rows)
    given = rows[1]
    # 12 choices, 4 tables of 7 allowed pairs; 4 nodes, 4 x 6 marginals, and time 2 alone.
    assert (given["variables"], given["rows"], given["memory"]) == ("40", "29", "rows")
    assert given["coefficients"] == str(12 + 2 * 28 + 4 * 6 + 12)
    assert float(given["cost_ratio"]) == 1.0
    assert float(given["time_ratio"]) > 0.0


def test_a_program_is_a_problem_too():
    problem = ROW.read_problem("mlp:tiny@v5e-8@2x4")
    assert len(problem.nodes) > 10
    assert problem.limit is not None


@pytest.mark.parametrize("form", ["given", "presolved"])
def test_infeasible_is_an_answer(form):
    contest("ring.json", usage_limit=2)
    answer = ROW.measure_row(asked(form=form))
    assert answer["status"] == "infeasible"
    assert "objective" not in answer


def test_forbidden_nodes_and_damaged_files_are_rows():
    contest("ring.json", nodes={"intervals": [[0, 1]], "costs": [[1e18]], "usages": [[1]]},
            edges={"nodes": [], "costs": []})  # fmt: skip
    assert ROW.measure_row(asked())["status"] == "infeasible"
    Path("ring.json").write_text("{")
    answer = ROW.measure_row(asked())
    assert answer["status"] == "failed"
    assert "ring.json" in answer["note"]


def test_a_model_that_is_too_large_says_how_large():
    contest("ring.json")
    answer = ROW.measure_row(asked(memory_limit=1000.0))
    assert answer["status"] == "too large"
    assert answer["variables"] == 40
    assert answer["note"].endswith("GiB at least, with 250 bytes a coefficient")


def test_a_plan_that_breaks_the_problem_is_invalid(monkeypatch):
    from autoshard.solve.backends import exact
    from autoshard.solve.backends.exact import Verdict

    contest("ring.json")

    def lying(model, **_):
        values = model.integer * 0.0
        values[[2, 5, 8, 11]] = 1.0  # the dearest in memory everywhere
        return exact.ExactResult(Verdict.OPTIMAL, 4.0, 4.0, values)

    monkeypatch.setattr(exact, "solve_linear", lying)
    monkeypatch.setattr(ROW, "_limit_memory", lambda size: None)
    answer = ROW.measure_row(asked())
    assert answer["status"] == "invalid"
    assert "objective" not in answer
    assert answer["note"] == "memory: 12 bytes at time 2, limit 7 (3 times over)"


def test_a_row_that_hangs_is_ended_with_what_is_known():
    code = (
        "import runpy, sys, time\n"
        "row = runpy.run_path(sys.argv[1])\n"
        "row['_Watch'](0.2 - row['GRACE_SECONDS'], {'variables': 7})\n"
        "time.sleep(600)"
    )
    words = [sys.executable, "-c", code, str(SOLVERS.ROW)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(done.stdout)
    assert (answer["status"], answer["variables"]) == ("killed", 7)


def test_ratios_are_to_ours():
    ours = {"problem": "x", "solver": "autoshard", "status": "optimal", "seconds": 2.0,
            "objective": 10.0, "bound": 10.0}  # fmt: skip
    other = {"problem": "in/b.json.gz", "solver": "CBC", "status": "feasible", "seconds": 5.0,
             "objective": 15.0, "bound": 9.0}  # fmt: skip
    row = SOLVERS.finished(other, [ours])
    assert (row["problem"], row["time_ratio"], row["cost_ratio"]) == ("b", 2.5, 1.5)
    assert row["gap"] == pytest.approx(0.4)


def test_a_process_that_died_is_a_row():
    row = SOLVERS.finished({"problem": "b.json", "solver": "CBC", "error": "exit code -9"}, [])
    assert (row["status"], row["note"]) == ("failed", "exit code -9")


def test_claims_that_another_row_disproves_are_refuted():
    rows = [
        {"problem": "b", "form": "given", "solver": "CP-SAT", "status": "infeasible"},
        {"problem": "b", "form": "given", "solver": "SCIP", "status": "none", "bound": 11.0},
        {"problem": "b", "form": "given", "solver": "CBC", "status": "feasible",
         "objective": 12.0, "bound": 9.0},
    ]  # fmt: skip
    assert [row["solver"] for row in SOLVERS.refuted(rows)] == ["CP-SAT"]
    assert rows[0]["note"] == "no plan, it said; there is one of 12"
    better = {"problem": "b", "form": "", "solver": "HiGHS", "status": "feasible",
              "objective": 10.0, "bound": 10.0 + 1e-7}  # fmt: skip
    rows.append(SOLVERS.finished(better, rows))
    assert [row["solver"] for row in SOLVERS.refuted(rows)] == ["SCIP"]
    assert [row["status"] for row in rows] == ["refuted", "refuted", "feasible", "feasible"]
    assert rows[1]["note"] == "no plan below 11, it said; there is one of 10"


def test_our_own_mistakes_fail_the_run(monkeypatch, capsys):
    def wrong(script, row):
        ours = row["solver"] == "autoshard"
        return {"status": "optimal", "objective": 9.0 if ours else 8.0, "bound": 9.0 if ours else 8}

    contest("ring.json")
    monkeypatch.setattr("autoshard.cli.rows.measure", wrong)
    words = ["--forms", "given", "--solvers", "autoshard,highs"]
    assert main(["bench", "solvers", "ring.json", *words]) == 5
    assert capsys.readouterr().out.endswith(
        "    refutes ring autoshard: no plan below 9, it said; there is one of 8\n"
    )


def test_what_is_named_must_be_there(capsys):
    assert refused(capsys, "bench solvers none.json") == "there is no file 'none.json'"
    assert refused(capsys, "bench solvers mlp@v5e-8") == (
        "'mlp@v5e-8' is not a PROGRAM@MACHINE@MESH such as llama3-8b@v5p-64@8x8"
    )
    message = refused(capsys, "bench solvers mpl@v5e-8@2x4 mlp@v9-8@8 mlp@v5e-8@3x3")
    lines = message.split("\n  ")
    assert lines[0].startswith("mpl@v5e-8@2x4: ")
    assert any(line.startswith("mlp@v9-8@8: ") for line in lines)
    assert lines[-1] == "mlp@v5e-8@3x3: mesh 3x3 does not use the 8 chips of v5e-8"
    assert "'gurobi' is none of autoshard, CP-SAT" in refused(
        capsys, "bench solvers --solvers gurobi"
    )
    assert "'0' must be at least 1" in refused(capsys, "bench solvers --threads 0")


def test_by_default_the_contest_files_that_are_there_and_some_programs(monkeypatch):
    Path("B.json.gz").touch()
    monkeypatch.setattr(SOLVERS, "CONTEST", Path())
    assert SOLVERS.problems([]) == ["B.json.gz", *SOLVERS.PROGRAMS]
    assert SOLVERS.problems(list(SOLVERS.PROGRAMS)) == list(SOLVERS.PROGRAMS)
