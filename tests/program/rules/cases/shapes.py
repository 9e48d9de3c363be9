"""What moves elements: reshapes, copies, pieces, and what is put together of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tests.program.rules.cases.case import Family, f, i

SHAPES = Family()
case = SHAPES.case

case(
    "reshape_split",
    "reshape",
    "([i, jk])->([i, j, k]) {i=4, j=2, k=6}",
    lambda a: a.reshape(4, 2, 6),
    f(4, 12),
)
case("reshape_merge", "reshape", "([i, j])->([ij]) {i=4, j=8}", lambda a: a.reshape(32), f(4, 8))
case(
    "reshape_both",
    "reshape",
    "([ij, k])->([i, jk]) {i=2, j=2, k=6}",
    lambda a: a.reshape(2, 12),
    f(4, 6),
)
case(
    "reshape_no_common_factor",
    "reshape",
    "([im, nl])->([ij, kl]) {i=2, j=3, k=2, l=2, m=2, n=3} need_replication={m, n}",
    lambda a: a.reshape(6, 4),
    f(4, 6),
    newer="([ij, ml])->([ij, kl]) {i=2, j=2, k=2, l=2, m=3} need_replication={i, j, k, m}",
)
case(
    "squeeze",
    "squeeze",
    "([i, k, j])->([i, j]) {i=4, j=8, k=1}",
    lambda a: lax.squeeze(a, (1,)),
    f(4, 1, 8),
)
case("tile", "tile", "([i, k])->([i, jk]) {i=4, j=2, k=8}", lambda a: jnp.tile(a, (1, 2)), f(4, 8))
case(
    "transpose",
    "transpose",
    "([j, k, i])->([i, j, k]) {i=6, j=4, k=8}",
    lambda a: a.transpose(2, 0, 1),
    f(4, 8, 6),
)
case(
    "broadcast_in_dim",
    "broadcast_in_dim",
    "([j, l])->([i, j, k]) {i=2, j=4, k=8, l=1}",
    lambda a: jnp.broadcast_to(a, (2, 4, 8)),
    f(4, 1),
)
case(
    "concatenate",
    "concatenate",
    "([i, j], [i, j])->([i, j]) {i=4, j=4} need_replication={j}",
    lambda a, c: jnp.concatenate([a, c], 1),
    f(4, 8),
    f(4, 4),
)
case(
    "pad",
    "pad",
    "([i, j], [])->([i, j]) {i=4, j=8} permutation={j}",
    lambda a: jnp.pad(a, ((0, 0), (1, 3))),
    f(4, 8),
)
case(
    "slice", "slice", "([i, j])->([i, j]) {i=4, j=4} permutation={j}", lambda a: a[:, 2:6], f(4, 8)
)
case(
    "split",
    "split",
    "([i, j])->([i, j], [i, j]) {i=4, j=4} permutation={j}",
    lambda a: lax.split(a, (4, 4), 1),
    f(4, 8),
)
case(
    "rev",
    "rev",
    "([i, j])->([i, j]) {i=4, j=8} permutation={j}",
    lambda a: lax.rev(a, (1,)),
    f(4, 8),
)
case(
    "dynamic_slice",
    "dynamic_slice",
    "([i, j], [], [])->([i, j]) {i=4, j=2} need_replication={j}",
    lambda a, n: lax.dynamic_slice(a, (0, n), (4, 2)),
    f(4, 8),
    i(),
)
case(
    "dynamic_slice_one",
    "dynamic_slice",
    "([k, j], [], [])->([i, j]) {i=1, j=6, k=8} reduction={k} need_replication={i}",
    lambda a, n: lax.dynamic_slice(a, (n, 0), (1, 6)),
    f(8, 6),
    i(),
)
case(
    "dynamic_update_slice_long",
    "dynamic_update_slice",
    "([i, j], [i, k], [], [])->([i, j]) {i=4, j=8, k=2} need_replication={j, k}",
    lambda a, u, n: lax.dynamic_update_slice(a, u, (0, n)),
    f(4, 8),
    f(4, 2),
    i(),
)
case(
    "dynamic_update_slice_one",
    "dynamic_update_slice",
    "([i, j], [i, k], [], [])->([i, j]) {i=4, j=8, k=1} need_replication={k}",
    lambda a, u, n: lax.dynamic_update_slice(a, u, (0, n)),
    f(4, 8),
    f(4, 1),
    i(),
)
case(
    "device_put_to_host",
    "device_put",
    "([i, j])->([i, j]) {i=4, j=8}",
    lambda a: jax.device_put(a, jax.memory.Space.Host),
    f(4, 8),
)
