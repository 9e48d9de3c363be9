"""In which type, which order and how often XLA:TPU gathers an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from autoshard.xla.habits.records import Built, Habit, Kernel
from autoshard.xla.habits.tpu_probes import (
    INNER,
    WHOLE,
    X,
    bf16,
    f32,
    habit,
    indices,
    pinned,
    products,
    written,
)


def _gathers(built: Built) -> Sequence[Kernel]:
    """Of floating-point arrays: indices are gathered, too."""
    return [one for one in built.collectives("all-gather") if one.writes[0][0] in "bf"]


def _sent_narrow(built: Built, before: str, after: str) -> bool:
    """Whether a shard is converted, and then gathered."""
    (gather,) = _gathers(built)
    (converted,) = [one for one in written(built, before) if "convert" in one.opcodes]
    return gather.writes == (after,) and converted.position < gather.position


def _whole_table(table: Any, ids: Any) -> Any:
    return pinned(table)[ids].astype(jnp.bfloat16)


def _table_narrow(built: Built) -> bool:
    return _sent_narrow(built, "bf16[1024,1024]", "bf16[8192,1024]")


def _own_rows(table: Any, ids: Any) -> Any:
    return table[ids].astype(jnp.bfloat16)


def _rows_wide(built: Built) -> bool:
    (found,) = built.kernels("gather")
    return found.writes == ("f32[4096,1024]",) and not written(built, "bf16[1024,1024]")


def _layers(x: Any, weights: Any) -> Any:
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(x @ pinned(w).astype(x.dtype)), None

    return lax.scan(layer, x, weights)[0]


def _slices_narrow(built: Built) -> bool:
    (gather,) = _gathers(built)
    return gather.depth == 1 and _sent_narrow(built, "bf16[6,256,2048]", "bf16[1,2048,2048]")


def _reshaped(x: Any, w: Any) -> Any:
    return x @ pinned(w).reshape(2048, 1024).astype(x.dtype)


def _heads_narrow(built: Built) -> bool:
    return _sent_narrow(built, "bf16[256,8,128]", "bf16[2048,8,128]")


def _times(w: Any, x: Any) -> Any:
    return pinned(w) * x


def _turned_and_back(built: Built) -> bool:
    """Two rows a shard: they are turned before, and the whole is turned back after."""
    (shard,) = written(built, "bf16[32,2,4096]")
    (gather,) = _gathers(built)
    *_, last = written(built, "bf16[32,16,4096]")
    turned = shard.opcode == "copy" and shard.orders == gather.orders == ((1, 0, 2),)
    return turned and last.opcode == "copy" and last.orders == ((0, 1, 2),)


def _gathered_as_it_lies(built: Built) -> bool:
    (gather,) = _gathers(built)
    return gather.orders == ((0, 1, 2),) and not built.kernels("copy")


def _four_layers(x: Any, *weights: Any) -> Any:
    for w in weights:
        x = jnp.tanh(x @ pinned(w))
    return x


def _apart(built: Built) -> bool:
    found = _gathers(built)
    return len(found) == 4 and all(one.writes == ("bf16[1024,1024]",) for one in found)


def _twice(x: Any, w: Any, v: Any) -> Any:
    return (jnp.tanh(x @ pinned(w)) @ v) @ pinned(w)


def _twice_barred(x: Any, w: Any, v: Any) -> Any:
    w, x = lax.optimization_barrier((w, jnp.tanh(x @ pinned(w)) @ v))
    return x @ pinned(w)


def _kept_between(built: Built) -> bool:
    """The last product reads what the first one read, or a copy of it in the vector memory."""
    (gather,) = _gathers(built)
    starts = [one.name for one in built.kernels("copy-start") if gather.name in one.operands]
    dones = [one.name for one in built.kernels("copy-done") if {*starts} & {*one.operands}]
    first, _, last = products(built)
    there = {gather.name, *dones}
    return gather.name in first.operands and not there.isdisjoint(last.operands)


def _gathered_again(built: Built) -> bool:
    first, between, last = products(built)
    once, again = _gathers(built)
    read = once.name in first.operands and again.name in last.operands
    return read and first.name in between.operands and once.reads == again.reads


def _doubled(w: Any) -> Any:
    return pinned(w) * 2


def _among_zeros(built: Built) -> bool:
    """An all-reduce of the whole, among zeros that were written before."""
    (total,) = built.collectives("all-reduce")
    filled = [one.writes for one in built.kernels() if one.opcode == "broadcast"]
    return filled == [total.writes] == [("bf16[4096,2048]",)]


HABITS: tuple[Habit, ...] = (
    habit(
        "gathers-over-cubes-of-several-are-sums",
        "In a program of several slices a gather over all of a torus of three rings is an "
        "all-reduce of shards among zeros.",
        _doubled,
        (bf16(4096, 2048),),
        (X,),
        (WHOLE,),
        _among_zeros,
        machine="2xv5p-64",
        mesh=(("slice", 2), ("x", 64)),
        chips=("TPU v4", "TPU v5p"),
    ),
    habit(
        "lookups-gather-narrow-tables",
        "A table that is gathered, looked up and converted is converted before it is gathered.",
        _whole_table,
        (f32(8192, 1024), indices(4096)),
        (X, X),
        (X,),
        _table_narrow,
    ),
    habit(
        "own-rows-converted-after-lookup",
        "A table of which every device looks up its own rows is converted after the lookup.",
        _own_rows,
        (f32(8192, 1024), indices(4096)),
        (X, X),
        (X,),
        _rows_wide,
    ),
    habit(
        "loops-gather-narrow-slices",
        "Slices of a stack that a loop gathers and converts are converted before that.",
        _layers,
        (bf16(16384, 2048), f32(6, 2048, 2048)),
        (X, INNER),
        (X,),
        _slices_narrow,
    ),
    habit(
        "reshaped-weights-gathered-narrow",
        "A weight that is gathered, reshaped and converted is converted before it is gathered.",
        _reshaped,
        (bf16(16384, 2048), f32(2048, 8, 128)),
        (X, X),
        (X,),
        _heads_narrow,
    ),
    habit(
        "few-rows-turned-for-gathers",
        "Shards that fill no tiles are turned for their gather, and the whole is turned back.",
        _times,
        (bf16(32, 16, 4096), bf16(32, 16, 4096)),
        (INNER, WHOLE),
        (WHOLE,),
        _turned_and_back,
    ),
    habit(
        "whole-tiles-gathered-as-they-lie",
        "Shards that fill tiles are gathered along an inner dimension without any copy.",
        _times,
        (bf16(32, 128, 4096), bf16(32, 128, 4096)),
        (INNER, WHOLE),
        (WHOLE,),
        _gathered_as_it_lies,
    ),
    habit(
        "whole-lanes-gathered-as-they-lie",
        "Shards that fill tiles are gathered along the last dimension without any copy.",
        _times,
        (bf16(32, 128, 4096), bf16(32, 128, 4096)),
        ((None, None, "x"), WHOLE),
        (WHOLE,),
        _gathered_as_it_lies,
    ),
    habit(
        "gathers-stay-apart",
        "Gathers of several weights are not combined.",
        _four_layers,
        (bf16(8192, 1024), *(bf16(1024, 1024),) * 4),
        (X,) * 5,
        (X,),
        _apart,
        machine="v5p-8",
    ),
    habit(
        "identical-gathers-are-one",
        "A value that is gathered twice is gathered once, and the copy kept in between.",
        _twice,
        (bf16(16384, 2048), bf16(2048, 2048), bf16(2048, 2048)),
        (X, X, WHOLE),
        (X,),
        _kept_between,
        machine="v5p-8",
    ),
    habit(
        "barriers-part-gathers",
        "A value that is gathered again behind an optimization barrier is gathered twice.",
        _twice_barred,
        (bf16(16384, 2048), bf16(2048, 2048), bf16(2048, 2048)),
        (X, X, WHOLE),
        (X,),
        _gathered_again,
        machine="v5p-8",
    ),
)
