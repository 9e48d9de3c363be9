"""Why some habits stay though no error of steps or peaks shows what they buy.

What a habit buys says `benchmarks/HABITS.md`, over plans that were compiled. A habit stays without
that for one of the reasons of `records.REASONS_TO_KEEP`. Most of them are bounds: no rule follows
such a habit by itself. It says where the rule of another one ends, and its probe tells when a newer
compiler goes further.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoshard.xla.habits.records import Reason

_BOUNDS = {
    "gpu.algorithms-alone": "gpu.elementwise-chain ends at a sort",
    "gpu.cut-rows-alone": "gpu.norm-in-one-kernel ends where rows are cut over devices",
    "gpu.product-operands-written": "gpu.elementwise-chain ends before a product",
    "gpu.product-results-written": "gpu.elementwise-chain begins behind a product",
    "gpu.reversals-through-tiles": "gpu.transposes-element-by-element does not hold of reversals",
    "gpu.results-in-place": "gpu.results-beside ends at gradients that are read as they lie",
    "gpu.gathers-over-axes-apart": "gpu.gathers-combined ends where the devices differ",
    "gpu.sums-of-types-apart": "gpu.sums-combined ends where the types differ",
    "gpu.collectives-within-hosts-by-table": "gpu.gathers-between-hosts-reckoned ends at a host",
    "tpu.long-narrow-functions-written": "tpu.long-functions-made-anew holds of float32 alone",
    "tpu.written-for-inner-pads": "tpu.written-for-outer-pads holds of the last dimension, too",
    "tpu.tables-written-for-lookups": "tpu.elementwise-into-products ends at a lookup's table",
    "tpu.lookups-convert-what-they-find": "a lookup ends no chain, unlike a product on XLA:GPU",
    "tpu.updates-written-for-scatters": "gpu.scatters-compute-updates does not hold of XLA:TPU",
    "tpu.row-reductions-apart": "gpu.softmax-in-one-kernel does not hold of XLA:TPU",
    "tpu.pools-select-and-scatter": "gpu.pool-gradients-scatter does not hold of XLA:TPU",
    "tpu.softmaxes-of-plain-heads-in-one-kernel": "tpu.softmaxes-of-five-dimensions-in-one-kernel "
    "holds of four dimensions in forward passes",
    "tpu.products-write-into-stacks": "gpu.stacked-out-of-order does not hold of XLA:TPU",
    "tpu.large-arrays-in-main-memory": "tpu.short-lived-in-vector-memory ends at its size",
    "tpu.vector-memory-of-v4-is-smaller": "tpu.short-lived-in-vector-memory ends at 32 MiB on v4",
    "tpu.operands-fetched-ahead": "tpu.short-lived-in-vector-memory says nothing of what is copied "
    "there ahead",
    "tpu.ragged-rows-in-a-kernel": "gpu.ragged-once-per-group does not hold of XLA:TPU",
    "tpu.whole-tiles-gathered-as-they-lie": "tpu.few-rows-turned-for-gathers ends at whole tiles",
    "tpu.whole-lanes-gathered-as-they-lie": "tpu.few-rows-turned-for-gathers ends at whole lanes",
    "tpu.gathers-stay-apart": "gpu.gathers-combined does not hold of XLA:TPU",
    "tpu.barriers-part-gathers": "tpu.identical-gathers-are-one ends at a barrier",
    "tpu.scatters-along-one-dimension": "tpu.no-scatter-over-whole-square ends at one dimension",
    "tpu.v4-hides-no-gathers": "tpu.v5e-hides-gathers does not hold of v4",
    "tpu.v5p-hides-no-gathers": "tpu.v5e-hides-gathers does not hold of v5p",
    "tpu.v6e-hides-no-gathers": "tpu.v5e-hides-gathers does not hold of v6e",
}
_COLLECTIVES = {
    "gpu.terms-stay-partial": "sums would be planned once a term and found once",
    "gpu.weights-gathered-as-read": "weights would be gathered with twice the bytes",
    "tpu.products-scatter-around-rings": "permutes around a product would be taken for unplanned "
    "ones, and its scatter for missing",
    "tpu.products-gather-around-rings": "permutes around a product would be taken for unplanned "
    "ones, and its gather for missing",
}

REASONS: Mapping[str, Reason] = {
    **{name: Reason("bound", f"{why}.") for name, why in _BOUNDS.items()},
    **{name: Reason("collectives", f"{why}.") for name, why in _COLLECTIVES.items()},
}
"""By the names of habits; what stands here is found in `Habit.kept_for`."""
