"""The library functions of which a rule is known. Each has tests that parts compute the whole."""

from __future__ import annotations

from autoshard.program.kernels.known import grouped, paged
from autoshard.program.kernels.known.record import Known

PALLAS = "jax.experimental.pallas.ops.tpu"
MEGABLOX = f"{PALLAS}.megablox.gmm", "maxtext.kernels.megablox.backend"
PAGED = (f"{PALLAS}.paged_attention.paged_attention_kernel",)
RAGGED_PAGED = (f"{PALLAS}.ragged_paged_attention.kernel",)

TABLE = (
    Known("gmm", MEGABLOX, grouped.product_forms, grouped.product),
    Known("tgmm", MEGABLOX, grouped.gradient_forms, grouped.gradient),
    Known("paged_attention", PAGED, paged.decode_forms, paged.decode),
    Known("ragged_paged_attention", RAGGED_PAGED, paged.ragged_forms, paged.ragged),
)
