"""All habits of XLA:GPU."""

from __future__ import annotations

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
)
from autoshard.xla.habits.records import Habit

HABITS: tuple[Habit, ...] = (
    *gpu_fusion.HABITS,
    *gpu_kernels.HABITS,
    *gpu_products.HABITS,
    *gpu_ragged.HABITS,
    *gpu_orders.HABITS,
    *gpu_collectives.HABITS,
    *gpu_combined.HABITS,
    *gpu_schedule.HABITS,
    *gpu_prices.HABITS,
)
