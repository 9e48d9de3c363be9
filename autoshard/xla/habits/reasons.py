"""Why some habits stay though no error of steps or peaks shows what they buy.

What a habit buys says `benchmarks/HABITS.md`, over plans that were compiled. A habit stays without
that for one of the reasons of `records.REASONS_TO_KEEP`. Most of them are bounds: such a habit
says where the rule of another one ends, and its probe tells when a newer compiler goes further.
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
    "gpu.sums-combined": "it joins what gpu.sums-combined-in-loops and -to-30-mib are about",
    "gpu.sums-of-types-apart": "gpu.sums-combined ends where the types differ",
    "gpu.collectives-within-hosts-by-table": "gpu.gathers-between-hosts-reckoned ends at a host",
    "tpu.pads-run-in-readers": "tpu.pads-go-tile-by-tile ends where another kernel runs the pad",
    "tpu.slices-written-for-kernels": "tpu.slices-read-in-place ends at a kernel of Pallas",
    "tpu.long-narrow-functions-written": "tpu.long-functions-made-anew holds of float32 alone",
    "tpu.tables-written-for-lookups": "tpu.elementwise-into-products ends at a lookup's table",
    "tpu.lookups-convert-what-they-find": "a lookup ends no chain, unlike a product on XLA:GPU",
    "tpu.updates-written-for-scatters": "gpu.scatters-compute-updates does not hold of XLA:TPU",
    "tpu.shares-of-turned-scores-made-anew": "tpu.shares-of-turned-scores-written does not hold "
    "of chips of one core",
    "tpu.float32-products-in-one-pass": "chips name no rate of float32 beside that of bfloat16",
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
    "tpu.keeps-below-its-limit": "tpu.computes-again-above-it begins at its limit",
    "tpu.v4-hides-no-gathers": "tpu.v5e-hides-gathers does not hold of v4",
    "tpu.v5p-hides-no-gathers": "tpu.v5e-hides-gathers does not hold of v5p",
    "tpu.v6e-hides-no-gathers": "tpu.v5e-hides-gathers does not hold of v6e",
    "tpu.v5p-hides-gathers-by-recipe": "tpu.v5p-hides-no-gathers ends at the flags of recipes",
    "tpu.v6e-hides-gathers-by-recipe": "tpu.v6e-hides-no-gathers ends at the flags of recipes",
}
_COLLECTIVES = {
    "gpu.terms-stay-partial": "sums would be planned once a term and found once",
    "gpu.weights-gathered-as-read": "weights would be gathered with twice the bytes",
    "tpu.products-scatter-around-rings": "permutes around a product would be taken for unplanned "
    "ones, and its scatter for missing",
    "tpu.products-gather-around-rings": "permutes around a product would be taken for unplanned "
    "ones, and its gather for missing",
    "tpu.no-scatter-across-slices": "a reduce-scatter would be planned that is an all-reduce",
    "tpu.sums-across-slices-in-steps": "parts of a sum would be planned that all chips gather",
    "tpu.no-scatter-onto-two-dimensions": "a reduce-scatter would be planned that is an all-reduce",
    "tpu.scatters-around-oblongs": "an all-reduce would be planned that is a reduce-scatter",
    "tpu.reshaped-weights-gathered-narrow": "weights would be gathered with twice the bytes",
}
_MEMORY = {
    "gpu.inner-rows-copied-for-scatters": "a product that is scattered along an inner dimension is "
    "there twice, in two orders",
    "gpu.long-functions-written": "exact GELU is written for several readers, and would be said to "
    "take no memory",
    "gpu.nothing-over-barriers": "what a checkpoint makes anew behind its barrier would be said to "
    "be part of the kernels before it",
    "tpu.barriers-part-kernels": "what a checkpoint makes anew behind its barrier would be said to "
    "be part of the kernels before it",
    "tpu.scores-lie-by-positions": "scores of few keys fill whole tiles, and would be said to take "
    "a fifth of that",
    "tpu.kernels-read-as-numbered": "heads of 64 that a kernel of attention reads take twice their "
    "bytes (ViT-L/16 on v5e-16: 10.7 GiB compiled, and 8.4 would be said)",
    "tpu.windows-lie-by-batch-and-features": "what convolutions read fills more tiles than if any "
    "dimensions were innermost",
    "gpu.stacks-turned-for-products": "a token for 32 sequences of Llama-3-8B takes 79 GiB on one "
    "H100, and would be said to take 48",
    "gpu.stacks-beside-what-they-renew": "a cache that `lax.scan` is given and gives back takes "
    "its memory twice",
    "tpu.stacks-beside-what-they-renew": "a cache that `lax.scan` is given and gives back takes "
    "its memory twice",
    "gpu.workspace-of-blackwell": "calls on Blackwell take 32 MiB more in releases before 0.12",
    "tpu.late-products": "logits stay to the end of a backward pass where the other gradient of "
    "their table is exchanged",
    "tpu.own-rows-converted-after-lookup": "a table whose rows are looked up where they lie keeps "
    "its own type, which may be twice as wide",
    "tpu.slopes-of-turned-scores-made-anew": "later releases write slopes as large as the scores, "
    "which would be said to take no memory",
    "tpu.shares-of-turned-scores-written": "shares that several products read are as large as the "
    "scores, and would be said to take no memory",
}
_PROMISES = {
    "gpu.gathers-a-turn-ahead-by-recipe": "flags of recipes would be said to change nothing, and "
    "take 15 % of an FSDP step of 8B on h100-64",
    "gpu.sums-a-turn-behind-by-recipe": "without it 12 % of that step would be said to wait",
    "tpu.gathers-over-cubes-of-several-are-sums": "a gather takes more than twice as long as one",
    "gpu.transposes-element-by-element": "it takes more than ten times as long as its bytes",
    "gpu.tiles-of-sixteen-elements": "gpu.transposes-element-by-element begins below that",
    "gpu.small-products-of-a-row-are-sums": "a token for one sequence of Llama-3-8B takes 1.7 "
    "times as long on h100-8 as without it",
    "gpu.stacks-turned-for-wide-rows": "without it a token for one sequence of Llama-3-8B would be "
    "said to take 1.3 times as long as it does on one H100",
    "gpu.products-of-one-array-merged": "a token for 64 sequences of Llama-3-70B takes 1.2 "
    "times as long on h100-8 where XLA is not told to leave products apart",
    "gpu.ragged-once-per-group": "a ragged product takes as often as long as there are groups",
    "gpu.ragged-gradients-once-per-group": "its gradient takes as often as long, too",
    "tpu.pads-go-tile-by-tile": "ViT-L/16 with splash attention on v5e-16, whose rows are padded, "
    "takes 0.455 s, and 0.332 would be said",
    "tpu.wide-units-write-columns": "Llama-3-8B on v6e-64, which saves gate and up, takes "
    "0.736 s in place of 0.823",
    "tpu.ragged-gradients-once-per-group": "a gradient takes as often as long as there are groups",
    "tpu.computes-again-above-it": "machine files hold plans below that limit; above it a step "
    "of 8B takes a fifth longer on v6e-8",
}
_UNMEASURED = {
    "gpu.slices-written-for-products": "releases before 0.11 alone have it",
    "gpu.loop-edges-as-numbered": "releases before 0.12 alone have it",
    "gpu.stacks-written-in-turn": "releases before 0.12 alone have it",
    "gpu.caches-put-in-order-for-sums": "releases before 0.12 alone have it",
    "gpu.stacked-out-of-order": "releases before 0.12 alone show it",
    "tpu.long-functions-made-anew": "releases before 0.12 alone have it",
    "gpu.gathers-between-hosts-reckoned": "it orders collectives between hosts",
    "gpu.sums-between-hosts-reckoned": "it orders collectives between hosts",
    "gpu.strange-groups-unknown": "it orders collectives between hosts",
    "gpu.host-copies-beside-kernels": "no plan of the group has anything in the host's memory",
    "tpu.host-copies-beside-kernels": "no plan of the group has anything in the host's memory",
    "tpu.host-copies-in-another-turn": "no plan of the group has anything in the host's memory",
}
_SHARED = {
    "gpu.least-memory-in-loops": "XLA:TPU runs the kernels of loops in that order, too",
    "gpu.depth-first-where-least": "peaks of XLA:TPU are said 1 % too small without that order",
    "tpu.scatters-start-from-products": "peaks of XLA:GPU are said 4 % otherwise without it",
    "gpu.greedy-where-least": "peaks of XLA:TPU are said 30 % too large without that order",
}
_UNSETTLED = {
    "gpu.transposes-through-tiles": "steps of vision transformers, where it acts most, are said "
    "40 % too short",
    "tpu.slices-read-in-place": "steps of decoding, where it acts most, are said at a fifth",
    "tpu.updates-in-place": "steps of decoding, where it acts most, are said at a fifth",
}

REASONS: Mapping[str, Reason] = {
    **{name: Reason("bound", f"{why}.") for name, why in _BOUNDS.items()},
    **{name: Reason("collectives", f"{why}.") for name, why in _COLLECTIVES.items()},
    **{name: Reason("memory", f"{why}.") for name, why in _MEMORY.items()},
    **{name: Reason("promise", f"{why}.") for name, why in _PROMISES.items()},
    **{name: Reason("unmeasured", f"{why}.") for name, why in _UNMEASURED.items()},
    **{name: Reason("shared", f"{why}.") for name, why in _SHARED.items()},
    **{name: Reason("unsettled", f"{why}.") for name, why in _UNSETTLED.items()},
}
"""By the names of habits; what stands here is found in `Habit.kept_for`."""
