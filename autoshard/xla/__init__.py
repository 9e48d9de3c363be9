"""Belief: what the compiler will make of a program, and of a plan.

    analyse(program, chip)        facts of a program: fusion, copies, op order, live ranges
    forecast(prices, decisions)   memory and exposed time of a plan in the compiler's own order
    HABITS                        the assumptions about XLA:GPU and XLA:TPU, with sources and probes

A chip names its compiler (`Chip.compiler`), and a rule asks the compiler whether it has a habit.
Other packages import only these names from here.
"""

import importlib
from typing import TYPE_CHECKING

from autoshard.xla.facts import analyse
from autoshard.xla.forecast.forecast import Forecast, forecast

if TYPE_CHECKING:
    from autoshard.xla.habits import HABITS
    from autoshard.xla.habits.records import Habit, Kernel, Probe

__all__ = ["HABITS", "Forecast", "Habit", "Kernel", "Probe", "analyse", "forecast"]

_LATER = {"HABITS": "habits", **dict.fromkeys(("Habit", "Kernel", "Probe"), "habits.records")}


def __getattr__(name: str) -> object:
    # Import the catalogue and its probes only when they are asked for.
    if name in _LATER:
        return getattr(importlib.import_module(f"autoshard.xla.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
