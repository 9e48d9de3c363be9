"""A page of every kind: of the kept files, and of plans that short searches find."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.machine.load import load
from autoshard.models import tiny
from autoshard.models.find import find
from autoshard.plan.plan import Plan
from autoshard.program.fingerprint import is_of
from autoshard.program.graph import REWRITES
from autoshard.program.trace import trace
from autoshard.search.search import search
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
from autoshard.study.advice import advice
from autoshard.study.robust.record import Robust
from autoshard.study.whatif.table import WhatIf
from tests.kept import FOLDER, VERDICTS
from tests.show.pipeline.test_page import INSTANCE, pipeline


def kept_plan() -> Plan:
    return Plan.load(FOLDER / "plan.json")


def long_names(plan: Plan) -> Plan:
    """The plan as if everything in it had long names."""
    note = "a note that goes on and on " * 8
    return replace(plan, program=f"folder/{'long_' * 20}.py:train", notes=(note.strip(),))


def attended(*operands: Any) -> Any:
    """Output and gradients of cuDNN's attention of one head: its sequence may go in a ring."""

    def loss(given: Any) -> Any:
        out = jax.nn.dot_product_attention(*given, is_causal=True, implementation="cudnn")
        return jnp.sum(jnp.sin(out.astype(jnp.float32)))

    return jax.value_and_grad(loss)(operands)


QUERIES = (jax.ShapeDtypeStruct((1, 4096, 1, 128), jnp.bfloat16),) * 3
QUICK = {
    "a step of decoding": ("llama3-1b-decode:tiny", "h100-8", {"mesh": {"x": 2, "y": 4}}),
    "a kernel in a ring": ("attention", "h100-8", {"mesh": {"x": 8}}),
    "flags of a recipe": ("mlp:tiny", "h100-8@recipe", {"mesh": {"x": 8}}),
}
SLOW = {
    "experts": ("mixtral-8x7b:tiny", "v5e-8", {"mesh": {"x": 2, "y": 4}}),
    "what is kept": ("llama3-1b:tiny", "v5e-8", {"mesh": {"x": 8}, "remat": "search"}),
    "what is sent to the host": ("llama3-1b:tiny", "v5e-8", {"mesh": {"x": 8}, "remat": "offload"}),
    "microbatches": ("mlp:tiny", "h100-8", {"mesh": {"x": 8}, "accumulate": (1, 2)}),
    "a graph network": ("gnn:tiny", "v5e-8", {"mesh": {"x": 8}}),
    "vision": ("vit-l16:tiny", "h100-8", {"mesh": {"x": 2, "y": 4}}),
}
"""By what they show: a program, a machine, and the options of a search."""


def searched(name: str, machine: str, options: dict[str, Any]) -> str:
    """The page of a plan that a short search finds, as `autoshard report` makes it."""
    chips = load(machine)
    if name == "attention":
        step, program = None, trace(attended, *QUERIES, name=name)
    else:
        step = find(name, machine=chips)
        program = trace(step.fn, *step.args, name=name, **step.options)
    plan = search(program, chips, time_limit=5.0, gap=0.05, **options)
    told = {key: plan.options[key] for key in REWRITES if key in plan.options}
    if step is not None and told:
        program = trace(step.fn, *step.args, name=name, **{**step.options, **told})
    known = profile(plan, program, chips)
    advised = () if step is None else advice(plan, known.prices, step)
    return page(Material(plan, known, machine_text(machine), advice=advised))


def of_plans(kinds: Mapping[str, tuple[str, str, dict[str, Any]]]) -> dict[str, str]:
    """Pages of plans of some kinds."""
    return {what: searched(*asked) for what, asked in kinds.items()}


def full_rows() -> WhatIf:
    """The kept sweep as if its rows were of large machines, with much to say of each."""
    found = read_sweep((FOLDER / "sweep.json").read_text())
    told = {
        "machine": "h100-1024",
        "binds": "memory bandwidth",
        "mesh": "x=16, y=8, z=8",
        "layouts": "53 % [-, x], 30 % [-, -, x], 10 % [-, -, -, x]",
        "tokens_per_second_per_chip": 16075.0,
        "utilisation": 0.4,
    }
    return replace(found, rows=tuple(replace(r, **told) if r.fits else r for r in found.rows))


def other_moves(plan: Plan) -> Plan:
    """The plan as if each collective went over both axes, and took long."""
    moves = [replace(move, axes=plan.mesh.names, exposed_seconds=0.1234) for move in plan.moves]
    return replace(plan, moves=tuple(moves), machine="h100-8")


def pages() -> dict[str, str]:
    """Pages by what they are of."""
    plan = kept_plan()
    fn, args, options = tiny("mlp")
    program = trace(fn, *args, name="mlp:tiny", **options)
    machine = load(plan.machine)
    if not is_of(plan.fingerprint, program):  # another JAX traces it otherwise
        plan = search(program, machine, mesh={"x": 2, "y": 4}, time_limit=5.0, gap=0.1)
    known = profile(plan, program, machine)
    robust = Robust.from_json(json.loads((FOLDER / "robust.json").read_text()))
    whole = Material(plan, known, machine_text(plan.machine), VERDICTS, robust=robust)
    return {
        "a plan": page(whole),
        "a plan alone": page(Material(long_names(plan), missing=("the program is gone",))),
        "two plans": compared(plan, other_moves(long_names(plan))),
        "a plan for several meshes": pipeline_page(pipeline(), VERDICTS),
        "a schedule": schedule_page(solve(INSTANCE, time_limit=20.0), ()),
        "a sweep": sweep_page(read_sweep((FOLDER / "sweep.json").read_text())),
        "a sweep of full rows": sweep_page(full_rows()),
        "serving": serving_page(read_serving((FOLDER / "serving.json").read_text())),
    }
