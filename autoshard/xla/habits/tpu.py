"""All habits of XLA:TPU."""

from __future__ import annotations

from autoshard.xla.habits import (
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
from autoshard.xla.habits.records import Habit

HABITS: tuple[Habit, ...] = (
    *tpu_fusion.HABITS,
    *tpu_kernels.HABITS,
    *tpu_attention.HABITS,
    *tpu_loops.HABITS,
    *tpu_memory.HABITS,
    *tpu_ragged.HABITS,
    *tpu_tiles.HABITS,
    *tpu_gathers.HABITS,
    *tpu_sums.HABITS,
    *tpu_schedule.HABITS,
)
