"""A plan of XLA's auto-sharder, and the step annotated with it.

The plan shards every instruction of the module. It can be compiled again in two ways:

    whole(plan, step)          the old module itself, every instruction as the plan says
    lower_ends(plan, step)     the present step, its arguments and results laid out as the plan
                               says; what lies in between is left to the present propagation

Shardings are written as XLA writes them, such as

    {devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}

an array of 4 x 1 tiles, in each of which 2 devices hold the same; devices are counted row by row
over [2,4], and those two dimensions are swapped before they are dealt to the tiles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from auto_sharding.environment import AutoShardingError
from autoshard.models.training import Step
from autoshard.plan.plan import MeshShape


@dataclass(frozen=True, slots=True)
class AutoPlan:
    """What the auto-sharder decided.

    Attributes:
      mesh: names and sizes, major to minor.
      inputs, outputs: the layout of every argument and result by tree path.
      module: the serialized HLO module with the sharding of every instruction.
      made_for: the TPU topology for which it was asked.
      seconds: that the auto-sharder took.
    """

    mesh: MeshShape
    inputs: Mapping[str, PartitionSpec]
    outputs: Mapping[str, PartitionSpec]
    module: bytes = field(repr=False)
    made_for: str
    seconds: float

    @classmethod
    def read(
        cls,
        mesh: Mapping[str, int],
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        **others: Any,
    ) -> AutoPlan:
        """The record of XLA's shardings.

        Raises:
          AutoShardingError: some cannot be said with the mesh's axes; all of them are named.
        """
        shape = MeshShape(tuple(mesh), tuple(mesh.values()))
        faults: list[str] = []

        def specs(shardings: Mapping[str, str]) -> dict[str, PartitionSpec]:
            found = {}
            for path, text in shardings.items():
                try:
                    found[path] = spec_of(text, shape)
                except AutoShardingError as error:
                    faults.append(f"  {path}: {error}")
            return found

        plan = cls(shape, specs(inputs), specs(outputs), **others)
        if faults:
            heading = f"XLA's auto-sharder chose what the mesh {shape} cannot say:"
            raise AutoShardingError("\n".join([heading, *faults]))
        return plan


_TILED = re.compile(
    r"\{devices=\[(?P<tiles>[\d,]+)\](<=\[(?P<reshape>[\d,]+)\](T\((?P<order>[\d,]+)\))?"
    r"|(?P<listed>[\d,]+))(?P<replicated> last_tile_dim_replicate)?\}"
)


def spec_of(text: str, mesh: MeshShape) -> PartitionSpec:
    """The `PartitionSpec` of a sharding as XLA writes it, devices counted row by row over `mesh`.

    Raises:
      AutoShardingError: it cannot be read, or is not made of whole axes.
    """
    if text == "{replicated}":
        return PartitionSpec()
    match = _TILED.fullmatch(text)
    if match is None:
        raise AutoShardingError(f"{text} is not a tiling")
    tiles = _numbers(match["tiles"])
    if match["listed"]:
        devices = np.array(_numbers(match["listed"]))
    else:
        reshape = _numbers(match["reshape"])
        order = _numbers(match["order"]) if match["order"] else range(len(reshape))
        devices = np.arange(math.prod(reshape)).reshape(reshape).transpose(tuple(order)).ravel()
    if devices.size != math.prod(tiles) or devices.size != math.prod(mesh.sizes):
        raise AutoShardingError(f"{text} is not for {math.prod(mesh.sizes)} devices")
    # Row d: the tile that device d holds, in every dimension; then by its place in the mesh.
    held = np.empty((devices.size, len(tiles)), dtype=np.int64)
    held[devices] = np.stack(np.unravel_index(np.arange(devices.size), tiles), axis=1)
    held = held.reshape(*mesh.sizes, len(tiles))
    places = np.indices(mesh.sizes)
    parts = []
    for dimension in range(len(tiles) - bool(match["replicated"])):
        index = held[..., dimension]
        strides = {}  # of the axes that lie on this dimension: tiles from one device to the next
        for number, (name, size) in enumerate(zip(mesh.names, mesh.sizes, strict=True)):
            second = tuple(int(other == number) for other in range(len(mesh.sizes)))
            stride = int(index[second] - index.flat[0]) if size > 1 else 0
            if stride:
                strides[name] = (stride, number)
        rebuilt = sum((stride * places[number] for stride, number in strides.values()), start=0)
        if not np.array_equal(index, np.broadcast_to(rebuilt, index.shape)):
            raise AutoShardingError(f"{text} does not follow whole axes")
        parts.append(tuple(sorted(strides, key=lambda name: -strides[name][0])) or None)
    return PartitionSpec(*parts)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


# -- the annotated step ----------------------------------------------------------------------------


def lower_ends(plan: AutoPlan, step: Step, *, platforms: Sequence[str]) -> Any:
    """The `jax.stages.Lowered` of the present step; only its arguments and results are annotated.

    Raises:
      AutoShardingError: the plan is of other arguments or results; all of them are named.
      ValueError: a dimension does not divide (by JAX).
    """
    kinds = (AxisType.Auto,) * len(plan.mesh.sizes)
    mesh = AbstractMesh(plan.mesh.sizes, plan.mesh.names, axis_types=kinds)
    results = jax.eval_shape(step.fn, *step.args)
    faults: list[str] = []

    def shardings(tree: Any, specs: Mapping[str, PartitionSpec], what: str) -> Any:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        paths = [jax.tree_util.keystr(path) for path, _ in leaves]
        faults.extend(f"  {what} {path}: only in the step" for path in paths if path not in specs)
        faults.extend(f"  {what} {path}: only in the plan" for path in specs if path not in paths)
        found = [NamedSharding(mesh, specs.get(path, PartitionSpec())) for path in paths]
        return jax.tree.unflatten(jax.tree.structure(tree), found)

    given = shardings(step.args, plan.inputs, "argument")
    returned = shardings(results, plan.outputs, "result")
    if faults:
        raise AutoShardingError("\n".join(["the auto-sharder saw another step:", *faults]))
    jitted = jax.jit(step.fn, in_shardings=given, out_shardings=returned, **step.options)
    return jitted.trace(*step.args).lower(lowering_platforms=tuple(platforms))


@dataclass(frozen=True, slots=True)
class Whole:
    """The old module with all its shardings, for `autoshard.compiler.compiled.compile_lowered`."""

    module: Any

    def compiler_ir(self, dialect: str) -> Any:
        """The module, in StableHLO."""
        return self.module

    def as_text(self) -> str:
        """Its text, without source lines."""
        return str(self.module)


def whole(plan: AutoPlan, step: Step) -> Whole:
    """The module that the auto-sharder left; arguments are donated as the step says.

    Raises:
      AutoShardingError: the module is of another step.
    """
    from autoshard import compat

    counts = [len(jax.tree.leaves(argument)) for argument in step.args]
    if sum(counts) != len(plan.inputs):
        raise AutoShardingError(
            f"the auto-sharder saw another step: with {len(plan.inputs)} arguments, not "
            f"{sum(counts)}"
        )
    starts = np.cumsum([0, *counts])
    donated = [
        position
        for number in step.options.get("donate_argnums", ())
        for position in range(starts[number], starts[number + 1])
    ]
    return Whole(compat.stablehlo_of_hlo(plan.module, donated))
