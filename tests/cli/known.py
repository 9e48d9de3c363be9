"""Commands that take long answer with what is kept: so all of them are printed in a few seconds.

What is replaced is what traces, searches, compiles or measures; what reads a command line, prints
and writes files is as it is for users.
"""

from __future__ import annotations

import contextlib
import functools
import json
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from jax.sharding import PartitionSpec

from autoshard.cli import bench, search
from autoshard.cli.common import Verdict
from autoshard.compiler.probes import Outcome
from autoshard.plan.plan import Plan
from autoshard.search import dearest, replan
from autoshard.show.sweep.file import read_sweep
from autoshard.show.sweep.serving_file import read_serving
from autoshard.solve.schedule.instance_json import instance_to_json
from autoshard.solve.schedule.optimise.outcome_json import choice_from_json
from autoshard.solve.schedule.optimise.placements import PlacementChoice
from autoshard.study.annotate.fewest import Fewest
from autoshard.study.annotate.lines import Line
from autoshard.study.annotate.source_lines import Constraint, Spot
from autoshard.study.figures import Figure
from autoshard.study.frontier import Frontier
from autoshard.study.robust.record import Robust
from tests.cli import known_explanations
from tests.cli.test_bench import contest
from tests.cli.test_calibrate import TABLE
from tests.kept import SOLUTION
from tests.show.pipeline.test_page import INSTANCE, pipeline

SPEED = {"trace": 1.5, "build": 2.25, "solve": 3.0, "total": 6.75}
FOUND = {"objective": 0.5, "bound": 0.4995, "gap": 0.001, "peak_gib": 1.25}
ROWS: dict[str, dict[str, Any]] = {
    "layers": {"ops": 4321, **SPEED, **FOUND},
    "iopddl": {"instance": "asplos-2025-iopddl-B", "status": "feasible", "objective": 532_843.0},
    "solver_row": {
        "variables": 12_345, "rows": 678, "coefficients": 91_011, "memory": "soft", "build": 0.5,
        "seconds": 2.5, "status": "optimal", **FOUND,
    },
    "resolve": {
        "rows": [
            {
                "change": "limit", "cold": 4.0, "warm": 0.5, "ratio": 8.0, "cold_status": "optimal",
                "warm_status": "optimal", "cold_cost": 10.0, "warm_cost": 10.0, "cold_gap": 0.0,
                "warm_gap": 0.0, "first": 0.25, "tighten": 0.125,
            }
        ]
    },
    "plans_row": {
        "mesh": "x=8", "step": 0.25, "peak": 12.5, "fits": "yes", "compile": 31.0,
        "predicted": 0.24, "pred.GiB": 12.0, "peak_gib": 1.0,
    },
}  # fmt: skip
"""What the child of a benchmark answers, by its script."""
PLANS = tuple(
    {
        "plan": name, "step": 0.1 * k, "objective": 0.1 * k, "compiled": 0.11 * k, "ratio": 1.1,
        "peak_gib": 2.0, "compiled_gib": 2.1, "peak_ratio": 1.05, "wire_gb": 1.0, "made_gb": 1.0,
        "final_gb": 1.0, "unplanned": 0, "missing": 0, "compile_s": 3.0,
    }
    for k, name in enumerate(("best", "FSDP", "tensor parallel"), 1)
)  # fmt: skip


def measured(script: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What a child would have answered."""
    if Path(script).stem == "fidelity_group":
        Path(asked["answers"]).write_text("\n".join(map(json.dumps, PLANS)))
        return {"peak_gib": 1.0}
    return {"peak_gib": 1.0, **ROWS[Path(script).stem]}


class Prices:
    """Prices of a published run."""

    def __init__(self, **_: Any) -> None:
        pass

    def price(self, cells: dict[str, Any]) -> dict[str, Any]:
        return {
            **cells, "parallelism": "fsdp 8", "measured_seconds": 3.5, "predicted_seconds": 3.25,
            "predicted_gib": 30.5, "status": "priced",
        }  # fmt: skip

    def close(self) -> None:
        pass


def bounded(point: Any, **_: Any) -> Any:
    """What bounds a published point."""
    from autoshard.study.served.answer import Bound

    told = Bound(id=point.id, model=point.model, chip=point.chip, chips=point.chips)
    if point.id != "7b":
        return replace(told, status=f"unreachable: no published dimensions of {point.model!r}")
    return replace(told, mesh="tensor=1", tpot_ms=5.0, memory_gb=13.6, status="priced")


def judged(_: Path, __: Any) -> list[dict[str, Any]]:
    """What the cuts of three kernels came to."""
    said = ("agrees", "whole", "another sum over rows")
    return [{"number": n, "said": one, "cuts": 2, "words": "rows"} for n, one in enumerate(said)]


def _benchmark(load: Any, name: str) -> Any:
    """A benchmark that measures nothing."""
    module = load(name)
    solved = {
        "instance": "toy", "limit": "1f1b", "objective": "makespan", "seconds": 0.25,
        "bound": 9.0, "status": "optimal", "by": "1f1b", "ours": 9.0, "gap": 0.0,
    }  # fmt: skip
    known = {
        "schedules": {"_solved": lambda *_: [solved]},
        "measured": {"Pricer": Prices},
        "everything": {"measure": lambda name, *_: [Figure(name, "B", "gap", 0.25, "", "less")]},
        "kernels": {"numbered": types.SimpleNamespace(judged=judged)},
    }
    for word, value in known.get(name, {}).items():
        setattr(module, word, value)
    return module


def write_files() -> None:
    """What commands read beside the files that others wrote, into the working directory."""
    contest("problem.json", "asplos-2025-iopddl-B")
    Path("instance.json").write_text(json.dumps(instance_to_json(INSTANCE)))
    Path("instances.json").write_text(json.dumps([instance_to_json(INSTANCE)]))
    Path("times.csv").write_text(TABLE)
    Path("runs.csv").write_text("id,model,chip,chips\n8b,llama3.1-8b,v6e,8\n")
    Path("points.csv").write_text(
        "id,model,chip,chips,batch,input,output,tpot_ms\n7b,llama2-7b,H100,1,1,128,128,6.76\n"
        "9b,llama9-9b,H100,1,1,128,128,6.76\n"
    )


def _fewest() -> Fewest:
    spot = Spot((), "dot_general", 0, shape=(32, 64))
    rows = Constraint(PartitionSpec(("x", "y")), None)
    line = Line(((spot, rows),), ("mlp.py:49",), ("params['layers'][*]['up'], f32[32, 64]",),
                frozenset({"layer_*"}), 8192.0)  # fmt: skip
    return Fewest((line,), None, of=210)  # pyright: ignore[reportArgumentType]


def _schedule() -> PlacementChoice:
    outcome, _ = choice_from_json(json.loads(Path("schedule.json").read_text()))
    return PlacementChoice("v1", {"v1": outcome}, {})


def _verdict(judge: str, text: str) -> Any:
    return lambda *_: Verdict(judge, True, text)


@contextlib.contextmanager
def known_answers() -> Iterator[None]:
    """The answers of commands, in a folder of `tests.kept.write_kinds` and `write_files`."""

    found = functools.cache(search.find_program)
    kept: dict[Any, Any] = {}

    def remembered(made: Any) -> Any:
        def again(first: Any, *rest: Any, **words: Any) -> Any:
            if made not in kept:
                kept[made] = made(first, *rest, **words)
            return kept[made]

        return again

    def data(name: str) -> Any:
        return json.loads(Path(name).read_text())

    def asked(habits: Any) -> Iterator[Outcome]:
        return (Outcome(one.name, "holds", "", "0.10.2", 1.5) for one in habits)

    answers: dict[str, Any] = {
        **{
            f"autoshard.cli.{module}.find_program": lambda reference, *_, **__: found(reference)
            for module in ("explain", "replan", "search", "verify", "whatif")
        },
        **known_explanations.ANSWERS,
        "autoshard.search.dearest.dearest": remembered(dearest.dearest),
        "autoshard.search.replan.reprice": remembered(replan.reprice),
        "autoshard.cli.search._search": lambda *_: Plan.load("plan.json"),
        "autoshard.cli.meshes.search._found": lambda *_: pipeline(),
        "autoshard.plan.same_program.for_program": lambda plan, *_: plan,
        "autoshard.cli.verify._types": _verdict("types", "311 values, 25 collectives"),
        "autoshard.cli.verify._price": lambda *_: [Verdict("price", True, "59.33 us a step")],
        "autoshard.cli.verify._collectives": _verdict("collectives", "17 as planned, 0 missing"),
        "autoshard.cli.verify._numbers": _verdict("numbers", "on 8 fake devices as unsharded"),
        "autoshard.lower.spmd.lower": lambda *_: None,
        "autoshard.study.annotate.fewest.fewest": lambda *_, **__: _fewest(),
        "autoshard.study.whatif.sweep.whatif": lambda *_, **__: read_sweep(
            Path("sweep.json").read_text()
        ),
        "autoshard.study.whatif.serving.serving": lambda *_, **__: read_serving(
            Path("serving.json").read_text()
        ),
        "autoshard.study.frontier.frontier": lambda *_, **__: Frontier.from_json(
            data("frontier.json")
        ),
        "autoshard.cli.robust._found": lambda *_: Robust.from_json(data("robust.json")),
        "autoshard.cli.solve._answer": lambda *_: SOLUTION,
        "autoshard.cli.schedule._solve": lambda *_: _schedule(),
        "autoshard.cli.rows.measure": measured,
        "autoshard.study.served.answer.answer": bounded,
        "autoshard.study.habits.ask": asked,
        "autoshard.cli.bench.load_benchmark": functools.partial(_benchmark, bench.load_benchmark),
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch(name, answer))
        yield
