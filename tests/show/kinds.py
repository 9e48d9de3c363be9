"""A page of every kind, of the kept files."""

from __future__ import annotations

import json
from dataclasses import replace

from autoshard.machine.load import load
from autoshard.plan.plan import Plan
from autoshard.show.compare import compared
from autoshard.show.page import Material, page
from autoshard.show.pipeline.page import pipeline_page
from autoshard.show.pipeline.schedule_page import schedule_page
from autoshard.show.profile import profile
from autoshard.show.sources import machine_text
from autoshard.show.sweep.file import read_sweep
from autoshard.show.sweep.page import sweep_page
from autoshard.show.sweep.serving_file import read_serving
from autoshard.show.sweep.serving_page import serving_page
from autoshard.solve.schedule.optimise import solve
from autoshard.study.robust.record import Robust
from tests.kept import FOLDER, VERDICTS
from tests.show.pipeline.test_page import INSTANCE, pipeline


def kept_plan() -> Plan:
    return Plan.load(FOLDER / "plan.json")


def long_names(plan: Plan) -> Plan:
    """The plan as if everything in it had long names."""
    note = "a note that goes on and on " * 8
    return replace(plan, program=f"folder/{'long_' * 20}.py:train", notes=(note.strip(),))


def pages() -> dict[str, str]:
    """Pages by what they are of."""
    from autoshard.models import tiny
    from autoshard.program.trace import trace

    plan = kept_plan()
    fn, args, options = tiny("mlp")
    program = trace(fn, *args, name="mlp:tiny", **options)
    known = profile(plan, program, load(plan.machine))
    robust = Robust.from_json(json.loads((FOLDER / "robust.json").read_text()))
    whole = Material(plan, known, machine_text(plan.machine), VERDICTS, robust=robust)
    return {
        "a plan": page(whole),
        "a plan alone": page(Material(long_names(plan), missing=("the program is gone",))),
        "two plans": compared(plan, replace(long_names(plan), machine="h100-8")),
        "a plan for several meshes": pipeline_page(pipeline(), VERDICTS),
        "a schedule": schedule_page(solve(INSTANCE, time_limit=20.0), ()),
        "a sweep": sweep_page(read_sweep((FOLDER / "sweep.json").read_text())),
        "serving": serving_page(read_serving((FOLDER / "serving.json").read_text())),
    }
