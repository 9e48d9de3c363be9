"""Gathers and scatters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.program.rules.cases.case import Family, f, i


def gather(*offset: int, collapsed: tuple[int, ...] = (), mapped: tuple[int, ...] = (0,)) -> Any:
    return lax.GatherDimensionNumbers(offset, collapsed, mapped)


ROW = lax.ScatterDimensionNumbers(
    (0, 1), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,)
)
INDEXING = Family()
case = INDEXING.case

case(
    "embedding",
    "gather",
    (
        "([l, k], [i, j, m])->([i, j, k]) {i=4, j=2, k=6, l=8, m=1} reduction={l} "
        "need_replication={m}"
    ),
    lambda a, n: a[n],
    f(8, 6),
    i(4, 2),
)
case(
    "gather_fill",
    "gather",
    "([k, j], [i, l])->([i, j]) {i=4, j=6, k=8, l=1} reduction={k} need_replication={l}",
    lambda a, n: jnp.take(a, n, axis=0),
    f(8, 6),
    i(4),
)
case(
    "gather_fill_integers",
    "gather",
    "([k, j], [i, l])->([i, j]) {i=4, j=6, k=8, l=1} need_replication={k, l}",
    lambda a, n: jnp.take(a, n, axis=0),
    i(8, 6),
    i(4),
)
case(
    "take_along_axis",
    "gather",
    "([i, k], [i, j, l])->([i, j]) {i=4, j=6, k=8, l=1} reduction={k} need_replication={l}",
    lambda a, n: jnp.take_along_axis(a, n, axis=1),
    f(4, 8),
    i(4, 6),
)
case(
    "gather_window",
    "gather",
    "([i, j], [k])->([i, j]) {i=4, j=2, k=1} need_replication={j, k}",
    lambda a, n: lax.gather(a, n, gather(0, 1, mapped=(1,)), (4, 2)),
    f(4, 8),
    i(1),
)
case(
    "scatter_add",
    "scatter-add",
    ("([i, j], [k, l], [k, j])->([i, j]) {i=8, j=6, k=4, l=1} reduction={k} need_replication={l}"),
    lambda a, n, u: a.at[n].add(u),
    f(8, 6),
    i(4),
    f(4, 6),
)
case(
    "scatter_max",
    "scatter-max",
    (
        "([i, j], [k, l], [k, j])->([i, j]) {i=8, j=6, k=4, l=1} reduction={k:max} "
        "need_replication={l}"
    ),
    lambda a, n, u: a.at[n].max(u),
    f(8, 6),
    i(4),
    f(4, 6),
)
case(
    "scatter_min",
    "scatter-min",
    (
        "([i, j], [k, l], [k, j])->([i, j]) {i=8, j=6, k=4, l=1} reduction={k:min} "
        "need_replication={l}"
    ),
    lambda a, n, u: a.at[n].min(u),
    f(8, 6),
    i(4),
    f(4, 6),
)
case(
    "scatter_mul",
    "scatter-mul",
    (
        "([i, j], [k, l], [k, j])->([i, j]) {i=8, j=6, k=4, l=1} reduction={k:prod} "
        "need_replication={l}"
    ),
    lambda a, n, u: a.at[n].multiply(u),
    f(8, 6),
    i(4),
    f(4, 6),
)
case(
    "scatter_set",
    "scatter",
    "([i, j], [k, l], [k, j])->([i, j]) {i=8, j=6, k=4, l=1} need_replication={k, l}",
    lambda a, n, u: a.at[n].set(u),
    f(8, 6),
    i(4),
    f(4, 6),
)
case(
    "segment_sum",
    "scatter-add",
    ("([i, j], [k, l], [k, j])->([i, j]) {i=6, j=4, k=8, l=1} reduction={k} need_replication={l}"),
    lambda a, n: jax.ops.segment_sum(a, n, 6),
    f(8, 4),
    i(8),
)
case(
    "gather_row",
    "gather",
    (
        "([i, l, k], [i, m])->([i, j, k]) {i=4, j=1, k=6, l=8, m=2} reduction={l} "
        "need_replication={j, m}"
    ),
    jax.vmap(lambda a, n: lax.dynamic_slice(a, (n, 0), (1, 6))),
    f(4, 8, 6),
    i(4),
)
case(
    "scatter_row",
    "scatter",
    (
        "([i, j, k], [i, l], [i, m, k])->([i, j, k]) {i=4, j=8, k=6, l=2, m=1} "
        "need_replication={l, m}"
    ),
    jax.vmap(lambda a, u, n: lax.dynamic_update_slice(a, u, (n, 0))),
    f(4, 8, 6),
    f(4, 1, 6),
    i(4),
)
for kind in ("add", "max", "min", "mul"):
    case(
        f"scatter_{kind}_row",
        f"scatter-{kind}",
        "([i, j], [k], [l, j])->([i, j]) {i=8, j=6, k=1, l=1} need_replication={k, l}",
        lambda a, n, u, kind=kind: getattr(lax, f"scatter_{kind}")(a, n, u, ROW),
        f(8, 6),
        i(1),
        f(1, 6),
    )
