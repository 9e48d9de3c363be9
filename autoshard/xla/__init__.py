"""Belief: what the compiler will make of a program, and of a plan.

    analyse(program, chip)        facts of a program: what is fused, copied, ordered, alive when
    forecast(prices, decisions)   what a plan takes in the compiler's own order
    HABITS                        what is believed of XLA:GPU and XLA:TPU, with sources and probes

The chip knows its compiler (`Chip.compiler`), and rules ask that whether it has a habit. Others
import nothing else from here.
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
    # The catalogue and its probes are read by those who ask for it alone.
    if name in _LATER:
        return getattr(importlib.import_module(f"autoshard.xla.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
