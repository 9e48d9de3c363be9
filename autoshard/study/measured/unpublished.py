"""The mesh of a run whose source does not say it: the one that its framework takes by itself.

MaxText fills `ici_fsdp_parallelism` with the chips that a fast network joins and
`dcn_data_parallelism` with the rest (github.com/AI-Hypercomputer/maxtext, configs/base.yml, where
both are -1); JAX counts a host of GPUs as a slice. AXLearn has a mesh for each size of its models
and kind of machine (github.com/apple/axlearn, experiments/text/gpt/fuji.py, mesh_rules). Others are
taken to shard weights over all data-parallel ranks, as PyTorch's FSDP does where nothing is said
(docs.pytorch.org, FullyShardedDataParallel: FULL_SHARD).
"""

from __future__ import annotations

from autoshard.machine.machine import Machine
from autoshard.study.measured.table import Run
from autoshard.units import counted

UNPUBLISHED = "parallelism not published"
"""What a status says of a run whose mesh its source does not."""

_FUJI = {
    **{(size, kind): 8 for size in ("7b", "8b") for kind in ("v5p", "gpu")},
    ("70b", "gpu"): 128,
}
"""Ranks over which AXLearn shards weights, by size of the model and kind of machine; else all."""


def data_parallel_mesh(run: Run, machine: Machine, ranks: int) -> tuple[dict[str, int], str]:
    """Sizes of `replica` and `fsdp`, whose product is the data-parallel ranks, and a note.

    Args:
      run: neither `dp` nor `fsdp` of which is published.
      machine: or the part of it that one stage of a pipeline has.
      ranks: data-parallel ones.
    """
    sharded, whose = ranks, ""
    if "MaxText" in run.framework:
        sharded, whose = machine.network[0].chips * ranks // machine.chips, "as MaxText does"
    elif "AXLearn" in run.framework:
        kind = run.chip if run.chip.startswith("v") else "gpu"
        size = run.model.lower().rpartition("-")[2]
        sharded, whose = _FUJI.get((size, kind), ranks), "as AXLearn's own rules do"
    if not sharded or ranks % sharded:
        sharded = ranks
    if sharded == ranks:
        return {"replica": 1, "fsdp": ranks}, "taken to be FSDP over all data-parallel ranks"
    return (
        {"replica": ranks // sharded, "fsdp": sharded},
        f"taken to be FSDP over {counted(sharded, 'rank')} and copies over the others, {whose}",
    )
