"""Decoding and reading prompts as serving engines do, of any published decoder.

`engine_step` makes the step of one configuration, as abstract shapes; `AXES` names its dimensions.
"""

from autoshard.models.engine.step import AXES, Precision, engine_step

__all__ = ["AXES", "Precision", "engine_step"]
