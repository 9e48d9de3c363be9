"""Automatic sharding for JAX: a step and a cluster in, a proven plan and runnable code out.

    program = autoshard.trace(step, params, batch, donate_argnums=0)
    plan = autoshard.search(program, "v5p-64")
    lowered = autoshard.lower(plan, step, params, batch)

What is offered here is the public interface; `docs/architecture.md` says what lies where.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard import lower as lower
    from autoshard import search as search
    from autoshard.lower.mpmd.accumulate import accumulate_grads
    from autoshard.lower.mpmd.shardy import export_mpmd
    from autoshard.lower.spmd import Lowered
    from autoshard.lower.verify import verify
    from autoshard.machine.cluster import Cluster, load_cluster
    from autoshard.machine.load import load as load_machine
    from autoshard.machine.machine import Machine
    from autoshard.plan.keras_layouts import keras_layouts
    from autoshard.plan.plan import Plan
    from autoshard.plan.types.body import check_types
    from autoshard.program.annotations import Reading, constrain, laid_out
    from autoshard.program.kernels.ruled import kernel
    from autoshard.program.rules.user import UserRule
    from autoshard.program.select import RequirementError
    from autoshard.program.trace import Program, trace
    from autoshard.search.jit import jit
    from autoshard.search.meshes.devices import this_machine
    from autoshard.search.meshes.lower import lower_plan
    from autoshard.search.meshes.lower_step import lower_mpmd
    from autoshard.search.meshes.search import search_meshes
    from autoshard.search.replan import replan
    from autoshard.show.layout import layout_grid
    from autoshard.study import calibrate as calibrate
    from autoshard.study.frontier import frontier
    from autoshard.study.refine import refine
    from autoshard.study.robust.answer import robust
    from autoshard.study.whatif.serving import serving
    from autoshard.study.whatif.sweep import whatif

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Lowered",
    "Machine",
    "Plan",
    "Program",
    "Reading",
    "RequirementError",
    "UserRule",
    "accumulate_grads",
    "calibrate",
    "check_types",
    "constrain",
    "export_mpmd",
    "frontier",
    "jit",
    "keras_layouts",
    "kernel",
    "laid_out",
    "layout_grid",
    "load_cluster",
    "load_machine",
    "lower",
    "lower_mpmd",
    "lower_plan",
    "refine",
    "replan",
    "robust",
    "search",
    "search_meshes",
    "serving",
    "this_machine",
    "trace",
    "verify",
    "whatif",
]

_HOMES = {
    "Cluster": "machine.cluster",
    "Lowered": "lower.spmd",
    "Machine": "machine.machine",
    "Plan": "plan.plan",
    "Program": "program.trace",
    "Reading": "program.annotations",
    "RequirementError": "program.select",
    "UserRule": "program.rules.user",
    "accumulate_grads": "lower.mpmd.accumulate",
    "check_types": "plan.types.body",
    "constrain": "program.annotations",
    "export_mpmd": "lower.mpmd.shardy",
    "frontier": "study.frontier",
    "jit": "search.jit",
    "kernel": "program.kernels.ruled",
    "laid_out": "program.annotations",
    "keras_layouts": "plan.keras_layouts",
    "layout_grid": "show.layout",
    "load_cluster": "machine.cluster",
    "lower_mpmd": "search.meshes.lower_step",
    "lower_plan": "search.meshes.lower",
    "refine": "study.refine",
    "replan": "search.replan",
    "robust": "study.robust.answer",
    "search_meshes": "search.meshes.search",
    "serving": "study.whatif.serving",
    "this_machine": "search.meshes.devices",
    "trace": "program.trace",
    "verify": "lower.verify",
    "whatif": "study.whatif.sweep",
}
_PACKAGES = {"calibrate": "study.calibrate", "lower": "lower", "search": "search"}

_MOVED = {
    "annotations": "program.annotations",
    "calibrate": "study.calibrate",
    "cluster": "machine.cluster",
    "display": "show",
    "lower.runtime": "lower.mpmd.runtime",
    "lower.shardy_mpmd": "lower.mpmd.shardy",
    "mpmd": "lower.mpmd",
    "placement": "search.meshes",
    "refine": "study.refine",
    "requirements": "problem.requirements.records",
    "robust": "study.robust",
    "rules": "program.rules",
    "schedule": "solve.schedule",
    "statements": "problem.requirements.text",
    "types": "plan.types",
    "whatif": "study.whatif",
}
"""Modules that the documentation once named, under their old names."""


def __getattr__(name: str) -> object:
    # JAX and the solvers are imported when they are first needed, so that `--help` is quick.
    if name in _PACKAGES:
        value: object = importlib.import_module(f"autoshard.{_PACKAGES[name]}")
    elif name == "load_machine":
        value = importlib.import_module("autoshard.machine.load").load
    elif name in _HOMES:
        value = getattr(importlib.import_module(f"autoshard.{_HOMES[name]}"), name)
    else:
        from autoshard.near import hint

        raise AttributeError(f"module 'autoshard' has no attribute {name!r}{hint(name, __all__)}")
    globals()[name] = value
    return value


class _Moved(ModuleType):
    """A module under its old name; called, it is the public function of that name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        home = _HOMES[self.__name__.rpartition(".")[2]]
        function = importlib.import_module(f"autoshard.{home}")
        return getattr(function, self.__name__.rpartition(".")[2])(*args, **options)


class _OldNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules by the names that they had before they moved, with a warning."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not _new_name(fullname):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Moved(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        new = _new_name(module.__name__)
        warnings.warn(
            f"{module.__name__} is now {new}, or had from autoshard itself",
            DeprecationWarning,
            stacklevel=2,
        )
        moved = importlib.import_module(new)
        kept = {"__name__", "__spec__", "__loader__", "__package__", "__path__"}
        vars(module).update({k: v for k, v in vars(moved).items() if k not in kept})


def _new_name(fullname: str) -> str:
    """The present name of a module that had `fullname`, or an empty string."""
    for old, new in _MOVED.items():
        head = f"autoshard.{old}"
        if fullname == head or fullname.startswith(f"{head}."):
            return f"autoshard.{new}{fullname.removeprefix(head)}"
    return ""


sys.meta_path.append(_OldNames())

if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    from autoshard.show.notebook import register

    register(_shell)
