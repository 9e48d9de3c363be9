"""Automatic sharding for JAX: a step and a cluster in, a proven plan and runnable code out.

    program = autoshard.trace(step, params, batch, donate_argnums=0)
    plan = autoshard.search(program, "v5p-64")
    lowered = autoshard.lower(plan, step, params, batch)

See `autoshard.program`, `autoshard.search` and `autoshard.lower.spmd`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoshard import calibrate
    from autoshard.annotations import Reading, constrain, laid_out
    from autoshard.display.layout import layout_grid
    from autoshard.lower.spmd import Lowered, lower
    from autoshard.lower.verify import verify
    from autoshard.machine import Machine
    from autoshard.machine import load as load_machine
    from autoshard.mpmd.accumulate import accumulate_grads
    from autoshard.placement.lower_step import lower_mpmd
    from autoshard.plan import Plan
    from autoshard.program import Program, trace
    from autoshard.requirements import RequirementError
    from autoshard.robust.answer import robust
    from autoshard.search import search
    from autoshard.types.body import check_types
    from autoshard.whatif.serving import serving
    from autoshard.whatif.sweep import whatif

__all__ = [
    "Lowered",
    "Machine",
    "Plan",
    "Program",
    "Reading",
    "RequirementError",
    "accumulate_grads",
    "calibrate",
    "check_types",
    "constrain",
    "laid_out",
    "layout_grid",
    "load_machine",
    "lower",
    "lower_mpmd",
    "robust",
    "search",
    "serving",
    "trace",
    "verify",
    "whatif",
]

_HOMES = {
    "Lowered": "autoshard.lower.spmd",
    "Machine": "autoshard.machine",
    "Plan": "autoshard.plan",
    "Program": "autoshard.program",
    "Reading": "autoshard.annotations",
    "accumulate_grads": "autoshard.mpmd.accumulate",
    "RequirementError": "autoshard.requirements",
    "check_types": "autoshard.types.body",
    "constrain": "autoshard.annotations",
    "laid_out": "autoshard.annotations",
    "layout_grid": "autoshard.display.layout",
    "load_machine": "autoshard.machine",
    "lower_mpmd": "autoshard.placement.lower_step",
    "serving": "autoshard.whatif.serving",
    "trace": "autoshard.program",
    "verify": "autoshard.lower.verify",
}


def __getattr__(name: str) -> object:
    # JAX and the solvers are imported when they are first needed, so that `--help` is quick.
    import importlib

    if name in (
        "calibrate",
        "lower",
        "robust",
        "search",
        "whatif",
    ):  # modules; all but one can be called
        return importlib.import_module(f"autoshard.{name}")
    if name in _HOMES:
        attribute = "load" if name == "load_machine" else name
        value = getattr(importlib.import_module(_HOMES[name]), attribute)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'autoshard' has no attribute {name!r}")
