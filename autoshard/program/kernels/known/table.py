"""The library functions of which a rule is known. Each has tests that parts compute the whole."""

from __future__ import annotations

from autoshard.program.kernels.known import grouped, paged, ragged_dot, ragged_forms
from autoshard.program.kernels.known.record import Known

PALLAS = "jax.experimental.pallas.ops.tpu"
MEGABLOX = f"{PALLAS}.megablox.gmm", "maxtext.kernels.megablox.backend"
PAGED = (f"{PALLAS}.paged_attention.paged_attention_kernel",)
RAGGED_PAGED = (f"{PALLAS}.ragged_paged_attention.kernel",)
TOKAMAX = "tokamax._src.ops"
MAXTEXT = "maxtext.kernels.megablox.pallas_mosaic_tpu_v2"
RAGGED_DOT = (f"{TOKAMAX}.ragged_dot.pallas_mosaic_tpu_kernel",)
GMM_V2 = f"{TOKAMAX}.gmm_v2.gmm_v2", f"{MAXTEXT}_gmm_kernel"
TGMM_V2 = f"{TOKAMAX}.gmm_v2.tgmm_v2", f"{MAXTEXT}_tgmm_kernel"

TABLE = (
    Known("gmm", MEGABLOX, grouped.product_forms, grouped.product),
    Known("tgmm", MEGABLOX, grouped.gradient_forms, grouped.gradient),
    Known("gmm", RAGGED_DOT, ragged_forms.forms, ragged_dot.product),
    Known("tgmm", RAGGED_DOT, ragged_forms.forms, ragged_dot.gradient),
    Known("gmm_v2", GMM_V2, ragged_forms.forms_on_cores, ragged_dot.product),
    Known("tgmm_v2", TGMM_V2, ragged_forms.forms_on_cores, ragged_dot.gradient),
    Known("paged_attention", PAGED, paged.decode_forms, paged.decode),
    Known("ragged_paged_attention", RAGGED_PAGED, paged.ragged_forms, paged.ragged),
)
