"""What is believed of compilers, as data; `records` says what a habit is.

gpu_*, tpu_*    habits of one kind each, with their probes
host_copies     of both: arrays in the memory of the host
reasons         why some of them stay though they buy little of a prediction's error
"""

from dataclasses import replace

from autoshard.xla.habits import (
    gpu_collectives,
    gpu_combined,
    gpu_fusion,
    gpu_kernels,
    gpu_orders,
    gpu_prices,
    gpu_products,
    gpu_ragged,
    gpu_schedule,
    host_copies,
    tpu_attention,
    tpu_fusion,
    tpu_gathers,
    tpu_kernels,
    tpu_loops,
    tpu_memory,
    tpu_ragged,
    tpu_schedule,
    tpu_sums,
    tpu_tiles,
)
from autoshard.xla.habits.reasons import REASONS
from autoshard.xla.habits.records import Habit

__all__ = ["HABITS"]

_BY_KIND = (
    gpu_fusion,
    gpu_kernels,
    gpu_products,
    gpu_ragged,
    gpu_orders,
    gpu_collectives,
    gpu_combined,
    gpu_schedule,
    gpu_prices,
    tpu_fusion,
    tpu_kernels,
    tpu_attention,
    tpu_loops,
    tpu_memory,
    tpu_ragged,
    tpu_tiles,
    tpu_gathers,
    tpu_sums,
    tpu_schedule,
    host_copies,
)
HABITS: tuple[Habit, ...] = tuple(
    replace(habit, kept_for=REASONS.get(habit.name)) for kind in _BY_KIND for habit in kind.HABITS
)
"""Those of all compilers."""
