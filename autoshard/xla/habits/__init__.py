"""What is believed of compilers, as data; `records` says what a habit is.

gpu, tpu        all habits of one compiler, collected from the modules beside them
gpu_*, tpu_*    habits of one kind each, with their probes
"""

from autoshard.xla.habits import gpu, tpu
from autoshard.xla.habits.records import Habit

__all__ = ["HABITS"]

HABITS: tuple[Habit, ...] = (*gpu.HABITS, *tpu.HABITS)
"""Those of all compilers."""
