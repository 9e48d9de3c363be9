"""What the stages of a microbatch save for their backward passes, where that is chosen.

    staged = Staged.of(graph, stages)                # loops over layers are one per stage already
    staged.residuals[3].saved_as_written()           # names of what stage 3 saves
    graph = staged.saving([names of stage 0, ...])   # the same results, other values saved

The graph is written as a jaxpr, in which each loop over layers has the scope of its stage. So what
may be saved is found there, and the jaxpr is written anew, as for one mesh
(`autoshard.program.keep`): forward loops hand out the chosen stacks, and backward loops compute the
rest again. Each stage has its own loops, so each makes its own choice. Unrolled layers under
`jax.checkpoint` are whole in the graph, and likewise. Loops and layers of no stage, and what stands
outside of them, stay as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from autoshard.lower.mpmd.cut.flat import graph_of
from autoshard.lower.mpmd.cut.graph import Graph, Node
from autoshard.near import hint
from autoshard.program.keep import KeepError, Residuals, find_residuals, with_saved

_MARK = re.compile(r"^(backward/|)pipeline_stage_(\d+)(?:/|$)")


@dataclass(frozen=True, slots=True)
class StageChoice:
    """What one stage saves.

    Attributes:
      names: of what it saves (`bare`), or None for what the program says.
      offloaded: the names (`bare`) of stacks that wait in the memory of the host.
      prefetch: whether these move a turn late there, and come a turn early.
    """

    names: frozenset[str] | None = None
    offloaded: frozenset[str] = frozenset()
    prefetch: bool = False


Choice = Sequence[StageChoice]
"""What each stage saves."""


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """A microbatch whose loops are cut into stages, and what each stage may save.

    Attributes:
      closed: the microbatch, with the scope of its stage around each loop.
      whole: the candidates of all loops.
      residuals: those of each stage. Their names say the stage first (`bare` leaves it out).
    """

    closed: Any
    whole: Residuals
    residuals: tuple[Residuals, ...]

    @classmethod
    def of(cls, graph: Graph, stages: int) -> Staged:
        """Find what each of the stages may save; nodes of the graph say their stage."""
        closed = _closed(graph)
        whole = find_residuals(closed)
        return cls(closed, whole, tuple(_of_stage(whole, stage) for stage in range(stages)))

    def saving(self, saved: Choice) -> Graph:
        """The graph in which each stage saves these values.

        Raises:
          KeepError: a stage has no value or stack of a name, or a value that must be saved is not
            named.
        """
        mine = {name for stage in self.residuals for name in stage.homes}
        names = {name for name in self.whole.saved_as_written() if name not in mine}
        away: set[str] = set()
        early: set[str] = set()
        faults: list[str] = []
        for stage, (residuals, choice) in enumerate(zip(self.residuals, saved, strict=True)):
            found, unknown = wanted(residuals, choice)
            faults += [f"stage {stage} has no value {one}" for one in unknown]
            names |= found
            if choice.offloaded and not unknown:
                stacks = {bare(name): name for name in residuals.stacks(found)}
                faults += [
                    f"stage {stage} has no stack {name!r} that could lie on the host"
                    f"{hint(name, stacks)}"
                    for name in sorted(choice.offloaded)
                    if name not in stacks
                ]
                there = {stacks[name] for name in choice.offloaded if name in stacks}
                away |= there
                early |= there if choice.prefetch else set()
        if faults:
            raise KeepError("\n  * ".join(["what stages are to save is not there:", *faults]))
        return _staged(graph_of(with_saved(self.closed, self.whole, names, away, prefetch=early)))


def wanted(residuals: Residuals, choice: StageChoice) -> tuple[set[str], list[str]]:
    """The names of what a stage saves under a choice, and those that it does not have.

    The second are quoted, each with what is called almost so.
    """
    if choice.names is None:
        return set(residuals.saved_as_written()), []
    known = {bare(name): name for name in residuals.homes}
    unknown = [name for name in sorted(choice.names) if name not in known]
    found = {known[name] for name in choice.names if name in known}
    return found, [
        f"{name!r} that its backward pass may read{hint(name, known)}" for name in unknown
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Saves:
    """What the stages may save, and for each of them the names of what it does (`Choice`)."""

    staged: Staged
    chosen: Choice


def bare(name: str) -> str:
    """The name of a value without its stage."""
    return _MARK.sub(r"\1", name)


def _of_stage(whole: Residuals, stage: int) -> Residuals:
    def own(name: str) -> bool:
        found = _MARK.match(name)
        return found is not None and int(found[2]) == stage

    def part(of: Mapping[str, Any]) -> dict[str, Any]:
        return {name: one for name, one in of.items() if own(name)}

    return replace(
        whole,
        values=tuple(one for one in whole.values if own(one.name)),
        homes=part(whole.homes),
        carries=part(whole.carries),
        loops=part(whole.loops),
    )


def _closed(graph: Graph) -> Any:
    """The graph as a closed jaxpr whose equations have the scopes of their nodes."""

    def microbatch(*arrays: Any) -> list[Any]:
        known = dict(zip(graph.inputs, arrays, strict=True))
        for node in graph.nodes:
            operands = [known[value] for value in node.inputs]
            scope = _around(node)
            if not scope:
                results = node.apply(*operands)
            else:
                with jax.named_scope(scope):
                    results = node.apply(*operands)
            known.update(zip(node.outputs, results, strict=True))
        return [known[value] for value in graph.outputs]

    return jax.make_jaxpr(microbatch)(*(graph.avals[value] for value in graph.inputs))


def _around(node: Node) -> str:
    """The scope of a node, without what its own equation says, behind that of its stage."""
    own = "" if node.equation is None else str(node.equation.source_info.name_stack)
    outer = node.scope.removesuffix(own).rstrip("/")
    mark = "" if node.stage is None else f"pipeline_stage_{node.stage}"
    return "/".join(part for part in (mark, outer) if part)


def _staged(graph: Graph) -> Graph:
    """The graph with the stages of its nodes, in place of the scopes that say them."""

    def node(one: Node) -> Node:
        found = _MARK.match(one.scope)
        if found is None:
            return one
        return replace(one, stage=int(found[2]), scope=one.scope[found.end() :])

    return replace(graph, nodes=tuple(map(node, graph.nodes)))
