"""A step taken apart for several meshes: stages and fragments, not yet placed or scheduled.

partition = partition_step(step, params, opt_state, batch, stages=4, donate_argnums=(0, 1))
print(partition)
instance = partition.instance(meshes=4)             # a schedule problem, in FLOP and bytes
order = autoshard.solve.schedule.NAMED["1f1b"](instance)
script = partition.script((0, 1, 2, 3), order)      # what one controller does, in order
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from autoshard import compat
from autoshard.lower.mpmd.cut.cutting import Opened, cut_microbatch
from autoshard.lower.mpmd.cut.fragments import Cut
from autoshard.lower.mpmd.cut.homes import Homes, find_homes
from autoshard.lower.mpmd.cut.inference import FLOPS_PER_BYTE
from autoshard.lower.mpmd.cut.loop import LoopError, MicrobatchedStep, cut_into, find_loop
from autoshard.lower.mpmd.cut.meshes import Around, place_around
from autoshard.lower.mpmd.cut.outer import Outer, outer_of
from autoshard.lower.mpmd.cut.saving import Choice, Staged
from autoshard.lower.mpmd.instructions import Script
from autoshard.lower.mpmd.script import write_script
from autoshard.program.shard_maps.in_place import run_shard_maps
from autoshard.program.state.constants import hold
from autoshard.program.state.in_place import HOW, Returning
from autoshard.program.state.ties import argument_names, donated_positions, state_ties
from autoshard.solve.schedule.instance import Instance
from autoshard.solve.schedule.task import Order
from autoshard.units import counted


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """A step in fragments.

    Attributes:
      name: what the step is called.
      step: the step around its microbatch loop.
      cut: the microbatch in fragments.
      outer: what is done around the loop.
      ties: positions of inputs and of the outputs that replace them.
      donated: positions of inputs that may be overwritten.
      in_tree, out_tree, in_paths, out_paths, argument_names: the step's arguments and result.
      flops_per_byte: FLOP in the time in which a byte crosses between meshes.
      homes: the meshes on which the user wants inputs and results.
    """

    name: str
    step: MicrobatchedStep
    cut: Cut
    outer: Outer
    ties: tuple[tuple[int, int], ...]
    donated: frozenset[int]
    in_tree: Any
    out_tree: Any
    in_paths: tuple[str, ...]
    out_paths: tuple[str, ...]
    argument_names: tuple[str, ...]
    flops_per_byte: float
    homes: Homes = field(default_factory=Homes)

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.cut.stages)

    @property
    def microbatches(self) -> int:
        """How many microbatches there are."""
        return self.step.microbatches

    def instance(
        self, meshes: int, placement: Sequence[int] | None = None, **changed: Any
    ) -> Instance:
        """The schedule problem: times in FLOP, memory in bytes, transfers free.

        Memory of a microbatch is what F keeps for the backward pass and B for W, of whole values.
        Where B hands on more than F keeps, F counts for that, too. What F sends on and does not
        keep is there until it has been sent, of one microbatch at a time: it is counted among the
        static memory of its stage.

        Args:
          meshes: how many meshes there are.
          placement: the mesh of every stage; by default stages go round the meshes.
          **changed: other fields of `Instance`, such as measured times.
        """
        cut = self.cut
        stages = range(self.stages)
        kept = [set(cut.kept(s)) for s in stages]
        between = [
            {one.value for one in cut.fragments[s, "W"].inputs if one.value in kept[s]}
            | set(cut.handed(s))
            for s in stages
        ]
        after_b = [cut.bytes(values) for values in between]
        after_f = [max(cut.bytes(kept[s]), after_b[s]) for s in stages]
        fields: dict[str, Any] = {
            "forward": tuple(cut.fragments[s, "F"].flops for s in stages),
            "backward": tuple(cut.fragments[s, "B"].flops for s in stages),
            "weight": tuple(cut.fragments[s, "W"].flops for s in stages),
            "fused": tuple(max(cut.fragments[s, "BW"].flops, 1.0) for s in stages),
            "memory_forward": tuple(after_f),
            "memory_backward": tuple(b - f for f, b in zip(after_f, after_b, strict=True)),
            "memory_weight": tuple(-b for b in after_b),
            "static_memory": tuple(cut.bytes(self._sent(s) - kept[s]) for s in stages),
            "transfer": ((0,) * meshes,) * meshes,
            "time_scale": (1,) * meshes,
        }
        return Instance(
            meshes=meshes,
            microbatches=self.microbatches,
            placement=tuple(s % meshes for s in stages) if placement is None else tuple(placement),
            name=self.name,
            **{**fields, **changed},
        )

    def _sent(self, stage: int) -> set[int]:
        """What other stages read of what F of this one makes."""
        readers = (f for (s, _), f in self.cut.fragments.items() if s != stage)
        read = {one.value for f in readers for one in f.inputs if one.stage == stage}
        return read & set(self.cut.fragments[stage, "F"].outputs)

    def around(self, placement: Sequence[int]) -> Around:
        """What is done around the loop, on the meshes of the stages."""
        return place_around(
            self.outer,
            self.cut,
            placement,
            self.ties,
            given=self.homes,
            flops_per_byte=self.flops_per_byte,
        )

    def put(
        self, inputs: Mapping[str, int], outputs: Mapping[str, int], *, meshes: int
    ) -> Partition:
        """The same, with inputs and results on meshes of the user's choice.

        Args:
          inputs, outputs: tree paths, and the number of the mesh
          (`autoshard.lower.mpmd.cut.homes`).
          meshes: how many there are.

        Raises:
          PlacementError: paths that name nothing, meshes that there are not, and contradictions.
        """
        homes = find_homes(
            inputs,
            outputs,
            in_paths=self.in_paths,
            out_paths=self.out_paths,
            argument_names=self.argument_names,
            ties=dict(self.ties),
            meshes=meshes,
        )
        return replace(self, homes=homes)

    def script(self, placement: Sequence[int], order: Order) -> Script:
        """The instructions of the step.

        Args:
          placement: the mesh of every stage.
          order: the tasks of every mesh.

        Raises:
          ScheduleError: the order does not fit.
        """
        return write_script(
            self.cut,
            self.outer,
            self.around(placement),
            placement,
            order,
            self.microbatches,
            self.sliced(),
            returned=self.homes.outputs,
        )

    def sliced(self) -> frozenset[int]:
        """Values of the microbatch that are its part of something."""
        return frozenset(
            value
            for operand, entry in zip(self.step.operands, self.cut.inputs, strict=True)
            if operand.sliced
            for value in ((entry,) if isinstance(entry, int) else entry.values)
        )

    def __str__(self) -> str:
        return (
            f"{self.name}: {counted(self.microbatches, 'microbatch')}, "
            f"{counted(self.stages, 'stage')}\n{self.cut}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class TracedStep:
    """A step taken apart around its microbatch loop, which may be cut into stages in many ways.

    Attributes are those of `Partition`, and `opened`: what was found of cuts whose stages may save
    anything, which is the same whatever they save.
    """

    name: str
    step: MicrobatchedStep
    ties: tuple[tuple[int, int], ...]
    donated: frozenset[int]
    in_tree: Any
    out_tree: Any
    in_paths: tuple[str, ...]
    out_paths: tuple[str, ...]
    argument_names: tuple[str, ...]
    opened: dict[Hashable, Opened] = field(default_factory=dict)

    def cut(
        self,
        stages: int | Sequence[int] | Sequence[Sequence[str]],
        *,
        speeds: Sequence[float] | None = None,
        infer_transfers: bool = True,
        flops_per_byte: float = FLOPS_PER_BYTE,
        saved: Callable[[Staged], Choice] | None = None,
    ) -> Partition:
        """The step, cut into stages; arguments are those of `partition_step`, and what is `saved`.

        Args:
          saved: says what each stage saves for its backward pass; by default that is as the
            program says.

        Raises:
          StageError: more stages than blocks, or a scope that no op bears.
          PlacementError: stages against the order of data, or a transfer that is forbidden.
          KeepError: a stage has no such values to save, or must save others.
        """
        step = self.step
        summed = {result.output: result.initial is not None for result in step.results}
        cut = cut_microbatch(
            step.micro,
            stages,
            speeds=speeds,
            summed=[summed.get(k, False) for k in range(len(step.micro.outputs))],
            shared=[not operand.sliced for operand in step.operands],
            infer_transfers=infer_transfers,
            flops_per_byte=flops_per_byte,
            saved=saved,
            body=step.body,
            opened=self.opened,
        )
        return Partition(
            name=self.name,
            step=step,
            cut=cut,
            outer=outer_of(step, cut),
            ties=self.ties,
            donated=self.donated,
            in_tree=self.in_tree,
            out_tree=self.out_tree,
            in_paths=self.in_paths,
            out_paths=self.out_paths,
            argument_names=self.argument_names,
            flops_per_byte=flops_per_byte,
        )


def trace_step(
    fn: Callable[..., Any],
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    microbatches: int | None = None,
) -> TracedStep:
    """Trace a step and find its microbatch loop; arguments are those of `partition_step`.

    Args:
      microbatches: into how many a step is cut that is not written in microbatches, as
        `autoshard.trace` does; its gradients need no `autoshard.accumulate_grads` then.

    Raises:
      LoopError: the step has no microbatch loop, or is written for Explicit mesh axes; or it cannot
        be cut into so many microbatches, or has some already.
    """
    donate = donated_positions(donate_argnums, len(args))
    args = hold(args)
    abstract = jax.tree.map(lambda leaf: compat.shape_struct(jax.typeof(leaf)), args)
    returning = Returning(fn, args)
    with compat.traced_without_gpu():
        traced = jax.jit(returning).trace(*abstract)
    if returning.changed:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise LoopError(
            f"{name} changes its arguments in place; to cut it over several meshes, {HOW}"
        )
    untyped, explicit = compat.without_types(compat.in_lax(traced.jaxpr))
    if explicit:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise LoopError(
            f"{name} is written for the Explicit axes of one mesh, and cannot be cut over several: "
            "trace it with no mesh set, or on a mesh of Auto axes"
        )
    ties = state_ties(abstract, traced.out_info, donate)
    closed = compat.drop_dead_code(run_shard_maps(untyped))
    if microbatches is not None:
        closed = cut_into(closed, microbatches, ties)
    leaves = [len(jax.tree.leaves(arg)) for arg in args]
    starts = [sum(leaves[:k]) for k in range(len(args))]
    return TracedStep(
        name=getattr(fn, "__name__", type(fn).__name__),
        step=find_loop(closed),
        ties=ties,
        donated=frozenset(i for k in donate for i in range(starts[k], starts[k] + leaves[k])),
        in_tree=jax.tree.structure(abstract),
        out_tree=jax.tree.structure(traced.out_info),
        in_paths=_paths(abstract),
        out_paths=_paths(traced.out_info),
        argument_names=argument_names(fn, len(args)),
    )


def partition_step(
    fn: Callable[..., Any],
    *args: Any,
    stages: int | Sequence[int] | Sequence[Sequence[str]],
    speeds: Sequence[float] | None = None,
    donate_argnums: int | Sequence[int] = (),
    infer_transfers: bool = True,
    flops_per_byte: float = FLOPS_PER_BYTE,
) -> Partition:
    """Take a step apart for several meshes.

    Args:
      fn: a step that computes its gradients with `autoshard.accumulate_grads`.
      *args: pytrees of arrays or `jax.ShapeDtypeStruct`s.
      stages: how many stages, made of the repeated blocks that are found; or for every stage how
        many of those it has, or the scopes that belong to it (see
        `autoshard.lower.mpmd.cut.blocks.named_stages`).
      speeds: of every stage, where `stages` is a number; faster ones get more blocks.
      donate_argnums: positions of arguments that the step may overwrite (state).
      infer_transfers: whether ops that nobody named may need values of other stages.
      flops_per_byte: FLOP in the time in which a byte crosses between meshes.

    Raises:
      LoopError: the step has no microbatch loop.
      StageError: more stages than blocks, or a scope that no op bears.
      PlacementError: stages against the order of data, or a transfer that is forbidden.
    """
    return trace_step(fn, *args, donate_argnums=donate_argnums).cut(
        stages, speeds=speeds, infer_transfers=infer_transfers, flops_per_byte=flops_per_byte
    )


def _paths(tree: Any) -> tuple[str, ...]:
    return tuple(
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    )
