"""Shardy:MPMD's passes inside of jaxlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.compat.process_wide import alias_jaxlib


@dataclass(frozen=True, slots=True)
class MpmdFragment:
    """A fragment as Shardy:MPMD knows it.

    `origins` are (name, transpose count) of the computations that it is made of.
    """

    origins: tuple[tuple[str, int], ...]
    mesh: str
    stage: int | None = None
    call_counter: int | None = None


@dataclass(frozen=True, slots=True)
class MpmdMerge:
    """A merge rule: `sources` become `target`."""

    sources: tuple[MpmdFragment, ...]
    target: MpmdFragment


def partition_mpmd(
    text: str,
    *,
    meshes: Sequence[tuple[str, Sequence[tuple[str, int]]]],
    assignment: Mapping[str, str | tuple[str, int]],
    input_meshes: Sequence[str | None],
    output_meshes: Sequence[str | None],
    order: Sequence[Sequence[MpmdFragment]] = (),
    merges: Sequence[MpmdMerge] = (),
    donated: Sequence[int] = (),
    schedule: str = "none",
    infer_transfers: bool = False,
) -> tuple[str, str]:
    """Run Shardy:MPMD's passes on a module with named computations in `@main`.

    `schedule` is one of its own ("GPipe", "1F1B", ...), or "none" to keep the order of the module.
    `order` becomes its schedule rules; the passes of jaxlib 0.10.2 do not obey them, so that the
    module itself must be in order. Returns the partitioned module, and the same as IFRT IR.
    """
    mpmd = _mpmd()
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    def info(one: MpmdFragment) -> Any:
        origins = [mpmd.FragmentOrigin(name, count) for name, count in one.origins]
        return mpmd.FragmentInfo(
            origins, stage_id=one.stage, call_counter=one.call_counter, mesh_name=one.mesh
        )

    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        result = mpmd.apply_mpmd_partitioning(
            module,
            "main",
            [(name, list(axes)) for name, axes in meshes],
            dict(assignment),
            list(input_meshes),
            list(output_meshes),
            list(donated),
            partitioning_options={
                "mpmd_pipeline_schedule": schedule,
                "mpmd_infer_transfers": infer_transfers,
            },
            fragment_merge_rules=[
                mpmd.FragmentMergeRule([info(one) for one in rule.sources], info(rule.target))
                for rule in merges
            ],
            fragment_schedule_rules=[
                mpmd.FragmentScheduleRule([info(one) for one in tasks]) for tasks in order
            ],
            phases=mpmd.PartitioningPhase.ALL,
        )
        module = result.mpmd_module
        partitioned = str(module)
        mpmd.lower_to_ifrt(module)
        return partitioned, str(module)


def _mpmd() -> Any:
    """jaxlib's module of Shardy:MPMD, which looks for jaxlib under `jax.jaxlib`."""
    import importlib

    from jaxlib.mlir.dialects import mpmd as _dialect  # noqa: F401

    alias_jaxlib()
    return importlib.import_module("jaxlib._sdy_mpmd")
