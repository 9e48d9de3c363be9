"""`autoshard solve`: every answer checked, every refusal whole, no file lost."""

from __future__ import annotations

import gzip
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.cli.main import main
from autoshard.solve import Outcome, Progress, Solution, Status
from tests.cli.helpers import refused


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


CONTEST = {
    "problem": {
        "name": "small",
        "nodes": {
            "intervals": [[0, 2], [1, 2]],
            "costs": [[15, 5], [1, 2]],
            "usages": [[1, 2], [1, 1]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 0, 10, 0]]},
        "usage_limit": 3,
    }
}


def contest(name: str, **changes: object) -> None:
    """Write the small contest problem, with other values for some of its keys."""
    Path(name).write_text(json.dumps({"problem": {**CONTEST["problem"], **changes}}))


def test_solve(capsys):
    with gzip.open("small.json.gz", "wt") as file:
        json.dump(CONTEST, file)
    assert main(["solve", "small.json.gz", "--time-limit", "20", "-o", "out.json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("small: optimal, objective 7, bound 7, gap 0 %, ")
    assert err == ""
    answer = json.loads(Path("out.json").read_text())
    assert answer.pop("seconds") > 0
    assert answer == {
        "name": "small",
        "status": "optimal",
        "limit_hit": None,
        "objective": 7,
        "bound": 7,
        "gap": 0,
        "peak_usage": 3,
        "usage_limit": 3,
        "choices": [1, 1],
    }


def test_solve_shows_what_it_does(capsys):
    contest("small.json")
    assert main(["solve", "small.json", "-o", "out.json"]) == 0
    err = capsys.readouterr().err.split("\n")
    assert err[0] == "reading small.json"
    assert err[-2:] == ["autoshard: wrote out.json", ""]


def test_solve_counts_by_the_choices_of_the_file(capsys):
    nodes = {"intervals": [[0, 2], [1, 2]], "costs": [[1e18, 15, 5], [1, 2]]}
    nodes["usages"] = [[0, 1, 2], [1, 1]]
    contest("small.json", nodes=nodes, edges={"nodes": [], "costs": []}, usage_limit=None)
    assert main(["solve", "small.json", "-o", "out.json", "--quiet"]) == 0
    answer = json.loads(Path("out.json").read_text())
    assert answer["choices"] == [2, 0]
    assert (answer["objective"], answer["usage_limit"]) == (6, None)


def test_solve_refuses(capsys):
    assert (
        refused(capsys, "solve none.json") == "cannot read 'none.json': No such file or directory"
    )
    assert refused(capsys, "solve .") == "cannot read '.': Is a directory"
    Path("steps.py").write_text("def f(): pass")
    assert refused(capsys, "solve steps.py") == (
        "'steps.py' holds Python, and no choice problem; name a function of it where PROGRAM "
        "stands, as file.py:function"
    )
    contest("bad.json", edges={"nodes": [[0, 2]], "costs": [[0, 0, 10, 0]]})
    assert refused(capsys, "solve bad.json") == (
        "'bad.json' is not a choice problem in the contest's format:\n"
        "  - edge 0-2 (edges.nodes[0]) joins a node that is not there; the file has nodes 0 to 1"
    )


def test_solve_names_what_is_infeasible(capsys):
    contest("tight.json", usage_limit=1)
    assert refused(capsys, "solve tight.json --quiet", code=3) == (
        "'tight.json' is infeasible: at time 1 the lightest choices use 2, and the limit is 1: "
        "node 0 1, node 1 1; no limit below 2 can work"
    )
    contest("pairs.json", edges={"nodes": [[1, 0]], "costs": [[1e18] * 4]})
    assert refused(capsys, "solve pairs.json --quiet", code=3) == (
        "'pairs.json' is infeasible: node 0 has no choice left under the forbidden pairs of edge "
        "node 1 - node 0"
    )
    nodes = {**CONTEST["problem"]["nodes"], "costs": [[15, 5], [1e18, 2e18]]}
    contest("node.json", nodes=nodes)
    assert refused(capsys, "solve node.json --quiet", code=3) == (
        "'node.json' is infeasible:\n"
        "  - node 1 has only forbidden choices: 2 of at least 1e18, with its edges to itself; "
        "give one a lower cost"
    )


def test_solve_names_what_only_a_search_finds(capsys):
    """Three nodes of two choices, of which no two may be alike."""
    nodes = {"intervals": [[0, 1]] * 3, "costs": [[0, 0]] * 3, "usages": [[1, 2]] * 3}
    unlike = {"nodes": [[0, 1], [1, 2], [2, 0]], "costs": [[1e18, 0, 0, 1e18]] * 3}
    contest("odd.json", nodes=nodes, edges=unlike, usage_limit=5)
    assert refused(capsys, "solve odd.json --quiet", code=3) == (
        "'odd.json' is infeasible: a search found that the forbidden pairs exclude every solution, "
        "whatever the limit"
    )
    contest("odd.json", nodes=nodes, edges=unlike, usage_limit=None)
    assert refused(capsys, "solve odd.json --quiet", code=3) == (
        "'odd.json' is infeasible: a search found that the forbidden pairs exclude every solution"
    )
    alike = {"nodes": [[0, 1]], "costs": [[1e18, 0, 0, 1e18]]}
    contest("tight.json", nodes=nodes, edges=alike, usage_limit=3)
    assert refused(capsys, "solve tight.json --quiet", code=3) == (
        "'tight.json' is infeasible: a search found that no solution stays within the limit of 3; "
        "a usage_limit of 4 works"
    )


def solver_that(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let the solver's outcomes pass through `change`."""
    pipeline = importlib.import_module("autoshard.solve.pipeline")
    real = pipeline.solve
    monkeypatch.setattr(pipeline, "solve", lambda *args, **options: change(real(*args, **options)))


def test_solve_believes_no_wrong_answer(capsys, monkeypatch):
    contest("small.json")
    Path("out.json").write_text("precious")
    words = "solve small.json --quiet -o out.json --overwrite"
    with monkeypatch.context() as patch:
        solver_that(patch, lambda found: replace(found, solution=Solution((1, 0))))
        assert refused(capsys, words, code=5) == (
            "the solver's answer is refuted by the numbers of the file: the choices cost 16, "
            "not 7; this is an error in autoshard, nothing was written"
        )
    assert Path("out.json").read_text() == "precious"
    contest("small.json", usage_limit=2)
    solver_that(monkeypatch, lambda found: replace(found, solution=Solution((1, 1))))
    assert "refuted by the numbers of the file: usage is 3 at time 1, the limit 2" in refused(
        capsys, words, code=5
    )


def test_solve_without_a_solution_in_time(capsys, monkeypatch):
    contest("small.json")
    Path("out.json").write_text("precious")

    def nothing(limit: str) -> Any:
        def change(found: Outcome) -> Outcome:
            return Outcome(Status.UNKNOWN, None, replace(found.report, limit_hit=limit))

        return change

    words = "solve small.json --quiet -o out.json --overwrite --time-limit 9"
    with monkeypatch.context() as patch:
        solver_that(patch, nothing("time"))
        assert refused(capsys, words, code=4) == (
            "the time limit of 9 s passed before any solution was found; give more with "
            "--time-limit"
        )
    solver_that(monkeypatch, nothing("interrupted"))
    assert main(words.split()) == 130
    assert capsys.readouterr().err == "autoshard: interrupted before any plan was found\n"
    assert Path("out.json").read_text() == "precious"


def test_solve_writes_the_best_when_interrupted(capsys, monkeypatch):
    """Ctrl-C comes with the first news of a solution."""
    contest("small.json")
    pipeline = importlib.import_module("autoshard.solve.pipeline")
    real = pipeline.solve

    def interrupted(*args: object, progress: Any, **options: object) -> object:
        def hear(news: Progress) -> None:
            if news.objective < float("inf"):
                raise KeyboardInterrupt

        return real(*args, progress=hear, **options)

    monkeypatch.setattr(pipeline, "solve", interrupted)
    assert main(["solve", "small.json", "--quiet", "-o", "out.json"]) == 0
    out, err = capsys.readouterr()
    assert err == "autoshard: interrupted; this is the best solution so far\n"
    assert out.rstrip().endswith("stopped: interrupted")
    answer = json.loads(Path("out.json").read_text())
    assert answer["limit_hit"] == "interrupted"
    assert len(answer["choices"]) == 2


def test_solve_refuses_an_output_before_it_reads(capsys):
    assert refused(capsys, "solve none.json -o no/where.json") == (
        "cannot write 'no/where.json': there is no folder 'no'"
    )
