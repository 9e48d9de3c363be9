"""Whether XLA:TPU runs collectives beside compute, and in which order kernels run then.

It hides a gather inside of fusions: one starts it, a product takes it along, one ends it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from autoshard.xla.habits.records import Built, Habit
from autoshard.xla.habits.tpu_probes import X, bf16, habit, pinned, products, unprobed

_SCHEDULER = "xla/service/latency_hiding_scheduler.cc"
_WEIGHTS = (bf16(16384, 2048), bf16(2048, 2048), bf16(2048, 2048))


def _layers(x: Any, v: Any, w: Any) -> Any:
    return jnp.tanh(x @ pinned(v)) @ pinned(w)


def _hidden(built: Built) -> bool:
    """The second gather starts before the first product, which takes it along."""
    first, second = products(built)
    gathers = built.collectives("all-gather")
    starts = [one for one in gathers if "AsyncCollectiveStart" in one.inside]
    return (
        "all-gather" in first.opcodes
        and "all-gather" not in second.opcodes
        and len(starts) == 1
        and starts[0].position < first.position
    )


def _in_the_way(built: Built) -> bool:
    """Both gathers are whole, and the second one runs between the products or before them."""
    gathers = built.collectives("all-gather")
    whole = all(one.opcode == "all-gather" for one in gathers)
    return len(gathers) == 2 and whole and len(products(built)) == 2


def _shows_in_the_way(chip: str) -> Habit:
    return habit(
        f"{chip}-hides-no-gathers",
        f"By default no gather runs beside compute on {chip}.",
        _layers,
        _WEIGHTS,
        (X, X, X),
        (X,),
        _in_the_way,
        machine=f"{chip}-8",
        chips=(f"TPU {chip}",),
    )


def _shows_hidden(chip: str) -> Habit:
    return habit(
        f"{chip}-hides-gathers-by-recipe",
        f"With the flags of recipes a gather runs beside the product before on {chip}.",
        _layers,
        _WEIGHTS,
        (X, X, X),
        (X,),
        _hidden,
        machine=f"{chip}-8",
        chips=(f"TPU {chip}",),
        flags="recipe",
    )


HABITS: tuple[Habit, ...] = (
    habit(
        "v5e-hides-gathers",
        "On v5e a gather runs beside the product before the one that reads it.",
        _layers,
        _WEIGHTS,
        (X, X, X),
        (X,),
        _hidden,
        source=_SCHEDULER,
        chips=("TPU v5e",),
    ),
    *(_shows_in_the_way(chip) for chip in ("v4", "v5p", "v6e")),
    *(_shows_hidden(chip) for chip in ("v5p", "v6e")),
    unprobed(
        "schedules-from-the-end",
        "The order that hides collectives is found by list scheduling from the results.",
        _SCHEDULER,
        ("TPU v5e",),
    ),
    unprobed(
        "fixed-costs-of-kernels",
        "Products, other kernels and collectives have one fixed cost each in the scheduler.",
        "xla/service/latency_hiding_scheduler.h",
        ("TPU v5e",),
    ),
)
