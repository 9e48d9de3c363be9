"""Laws: seconds and bytes of ops, collectives and reshards on a machine, given `Facts`."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoshard.cost.collective import MeshTopology
    from autoshard.cost.step_prices import StepPrices, step_prices

__all__ = ["MeshTopology", "StepPrices", "step_prices"]

# Collectives and reshards need no JAX; the prices of a step do.
_LATER = {"MeshTopology": "collective", "StepPrices": "step_prices", "step_prices": "step_prices"}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return getattr(importlib.import_module(f"autoshard.cost.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
