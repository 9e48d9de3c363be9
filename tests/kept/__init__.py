"""Small files as commands write them: what shows and draws files is tried on every kind.

    plan.json      search mlp:tiny --machine v5e-8 --mesh 2x4 --memory-limit 65KiB --gap 0.1
    robust.json    robust mlp:tiny --machine v5e-8 --mesh 2x4
                   --range chip.memory_bandwidth=4e11..1e12
    serving.json   serving llama3-1b-decode:tiny --prefill llama3-1b-prefill:tiny --prompt 16
                   --sweep machine=v5e-4,h100-4 --sweep batch=8,16
    sweep.json     whatif mlp:tiny --sweep chip=v5e,h100 --sweep chips=4,8

The others follow from these, or from a toy: `write_kinds` makes all of them in a folder.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from autoshard.plan.fits import needed_bytes
from autoshard.plan.plan import Plan
from autoshard.solve.schedule.optimise import solve
from autoshard.solve.schedule.optimise.outcome_json import choice_to_json
from autoshard.solve.schedule.optimise.placements import PlacementChoice
from autoshard.study.frontier import Frontier
from tests.show.pipeline.test_page import INSTANCE, pipeline

FOLDER = Path(__file__).parent
VERDICTS = {
    "agrees": False,
    "verdicts": [
        {"judge": "price", "agrees": True, "text": "33.42 us"},
        {"judge": "collectives", "agrees": False, "text": "one is missing:\nall_gather@x"},
        {"judge": "numbers", "agrees": None, "text": "more than 16 devices"},
    ],
}
SOLUTION = {
    "name": "small", "status": "optimal", "limit_hit": None, "objective": 7, "bound": 7, "gap": 0,
    "seconds": 0.5, "peak_usage": 3, "usage_limit": 3, "choices": [1, 0],
}  # fmt: skip


def write_kinds(folder: Path) -> None:
    """Write a file of every kind."""
    for file in FOLDER.glob("*.json"):
        shutil.copy(file, folder)
    plan = Plan.load(FOLDER / "plan.json")
    half = needed_bytes(plan.estimate) // 2
    slower = replace(plan.estimate, peak_bytes=half, scheduled_bytes=half, step_seconds=1e-4)
    front = Frontier((plan, replace(plan, estimate=slower)), nothing_within=2**12)
    outcome = replace(solve(INSTANCE, time_limit=20.0), seconds=0.25)
    choice = PlacementChoice("v1", {"v1": outcome}, {"zigzag": "no order fits"})
    data = {
        "frontier": front.to_json(),
        "pipeline": pipeline().to_json(),
        "schedule": choice_to_json(choice),
        "verdicts": VERDICTS,
        "solution": SOLUTION,
    }
    for name, one in data.items():
        (folder / f"{name}.json").write_text(json.dumps(one))
