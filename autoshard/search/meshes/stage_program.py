"""Builds one program for one mesh that does all the work of a stage in a step.

The program runs the stage's part before the microbatch loop, F and the backward pass of one
microbatch, and the stage's update. Values that other stages send are arguments. Values that other
stages read are results:

    program(state, totals, data) -> (state, totals, sent)

    state    the part of the step's state (weights, optimizer state) that lives on the stage
    totals   the sums of gradients over microbatches, which stay in memory during the whole step
    data     the stage's part of a microbatch, what other stages send, and other inputs of the step

`traced` counts the ops of F, B and W once for every microbatch. If they need a gathered weight,
each of them gathers it, because they run as separate programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax

from autoshard.lower.mpmd.cut.fragments import SHARED, Fragment
from autoshard.lower.mpmd.cut.graph import run
from autoshard.lower.mpmd.cut.meshes import Around
from autoshard.lower.mpmd.cut.pieces import Pieces
from autoshard.lower.mpmd.partition import Partition
from autoshard.program.trace import Op, Program, trace
from autoshard.solve.schedule.task import Kind

Mode = Literal["fused", "split"]
"""Whether a stage's backward pass is one task (BW), or two (B and W)."""
KINDS: Mapping[Mode, tuple[Kind, ...]] = {"fused": ("F", "BW"), "split": ("F", "B", "W")}
_SCOPE = re.compile(r"(?:^|/)fragment_(F|BW|B|W)(?=/|$)")


@dataclass(frozen=True, slots=True)
class Argument:
    """The meaning of a program's argument in the step.

    Attributes:
      group: "state", "totals", "data" (an outer value), "sliced" (a microbatch's part of an outer
        value) or "sent" (computed by `stage` for one microbatch).
      value: the outer value; for "sent", the value of the microbatch.
      stage: the stage that sends it, or `SHARED`.
      path: the tree path of an input of the step, with its rows if it is a piece; or empty.
    """

    group: str
    value: int
    stage: int = SHARED
    path: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class StageProgram:
    """A stage as a program.

    Attributes:
      stage, mode: the number of the stage, and whether its backward pass is one task.
      arguments, results: the meaning of the arguments and results, in flat order.
      fn, args: the function and its abstract arguments.
      microbatches: how often F, B and W run.
    """

    stage: int
    mode: Mode
    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...]
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    microbatches: int

    def traced(self) -> Program:
        """Return the traced program; ops of F, B and W count once per microbatch."""
        return _repeated(
            trace(self.fn, *self.args, name=f"stage {self.stage}", donate_argnums=(0, 1)),
            self.microbatches,
        )


def kind_of(scope: str) -> Kind | None:
    """Return the fragment to which an op with this scope belongs; None if it runs once a step."""
    found = _SCOPE.search(scope)
    return found[1] if found else None  # type: ignore[return-value]


def stage_program(partition: Partition, stage: int, mode: Mode) -> StageProgram:
    """Return the program of a stage that is alone on its mesh; see `stage_programs`."""
    return stage_programs(partition, mode, [stage])[0]


def stage_programs(
    partition: Partition, mode: Mode, stages: Iterable[int] | None = None
) -> tuple[StageProgram, ...]:
    """Return the programs of stages that are alone on their meshes, by default of all stages.

    State that several stages read (tied weights) belongs to the first of them.
    """
    around = partition.around(range(partition.stages))
    wanted = range(partition.stages) if stages is None else stages
    return tuple(_Writer(partition, around, stage, mode).program() for stage in wanted)


class _Writer:
    def __init__(self, partition: Partition, around: Around, stage: int, mode: Mode) -> None:
        self.partition, self.stage = partition, stage
        self.mode: Mode = mode
        self.cut, self.outer, self.around = partition.cut, partition.outer, around
        self.phases = [phase for phase in around.phases if phase.mesh == stage]
        self.fragments = [self.cut.fragments[stage, kind] for kind in KINDS[mode]]
        made = {value for fragment in self.fragments for value in fragment.outputs}
        self.totals = [
            total
            for total in self.outer.totals
            if total.source.stage == stage and total.source.value in made
        ]
        self.sliced = partition.sliced()

    def program(self) -> StageProgram:
        arguments = self._arguments()
        outer, inner = self.outer.graph.avals, self.cut.graph.avals
        avals = [
            (inner if one.group == "sent" else outer)[one.value]
            if one.group != "sliced"
            else jax.ShapeDtypeStruct(outer[one.value].shape[1:], outer[one.value].dtype)
            for one in arguments
        ]
        groups = (("state",), ("totals",), ("data", "sliced", "sent"))
        places = [[k for k, one in enumerate(arguments) if one.group in g] for g in groups]
        flat = [k for place in places for k in place]
        state_after = self._state_after([arguments[k].value for k in places[0]])
        sent, leaving = self._sent(), self._leaving(state_after)

        def step(state: Any, totals: Any, data: Any) -> Any:
            known = dict(zip([arguments[k] for k in flat], (*state, *totals, *data), strict=True))
            values = {a.value: array for a, array in known.items() if a.group in ("state", "data")}
            for phase in self.phases:
                if phase.early:
                    values |= self._phase(phase, values)
            parts = {a.value: array for a, array in known.items() if a.group == "sliced"}
            within = {(a.value, a.stage): array for a, array in known.items() if a.group == "sent"}
            sums = {a.value: array for a, array in known.items() if a.group == "totals"}
            for fragment in self.fragments:
                with jax.named_scope(f"fragment_{fragment.kind}"):
                    made = self._fragment(fragment, values, parts, within)
                    for total in self.totals:
                        if total.source.value in made:
                            sums[total.value] = sums[total.value] + made[total.source.value]
                within |= {(value, self.stage): array for value, array in made.items()}
            values |= sums
            for phase in self.phases:
                if not phase.early:
                    values |= self._phase(phase, values)
            return (
                tuple(values[value] for value in state_after),
                tuple(sums[arguments[k].value] for k in places[1]),
                (
                    tuple(within[value, self.stage] for value in sent),
                    tuple(values[value] for value in leaving),
                ),
            )

        args = tuple(tuple(avals[k] for k in place) for place in places)
        return StageProgram(
            self.stage,
            self.mode,
            tuple(arguments[k] for k in flat),
            self._results(state_after, [arguments[k] for k in places[1]], sent, leaving),
            step,
            args,
            self.partition.microbatches,
        )

    def _fragment(
        self,
        fragment: Fragment,
        values: Mapping[int, Any],
        parts: Mapping[int, Any],
        within: Mapping[tuple[int, int], Any],
    ) -> dict[int, Any]:
        """Return a fragment's results from outer values, a microbatch's parts and sent values."""
        reads = {}
        for one in fragment.inputs:
            if one.stage == SHARED:
                value = self.outer.operands[one.value]
                source = parts if one.value in self.sliced else values
                reads[one.value] = source[value]
            else:
                reads[one.value] = within[one.value, one.stage]
        results = run(fragment.nodes, reads, fragment.outputs)
        return dict(zip(fragment.outputs, results, strict=True))

    def _phase(self, phase: Any, values: Mapping[int, Any]) -> dict[int, Any]:
        known = {value: values[value] for value in phase.inputs}
        return dict(zip(phase.outputs, run(phase.nodes, known, phase.outputs), strict=True))

    def _arguments(self) -> list[Argument]:
        """Return the arguments in the order of the step's inputs, then totals, then sent values."""
        made = {value for phase in self.phases for value in phase.outputs}
        made |= {total.value for total in self.totals}
        wanted: dict[int, bool] = {}  # outer values, and whether a microbatch takes its part
        for phase in self.phases:
            wanted.update((value, False) for value in phase.inputs if value not in made)
        sent: dict[tuple[int, int], None] = {}
        for fragment in self.fragments:
            for one in fragment.inputs:
                if one.stage == SHARED:
                    value, part = self.outer.operands[one.value], one.value in self.sliced
                    if part or value not in made:
                        wanted[value] = part
                elif one.stage != self.stage:
                    sent[one.value, one.stage] = None
        paths = self._paths()
        state = self._state()
        order = {value: k for k, value in enumerate(paths)}
        arguments = [
            Argument(
                "sliced" if part else "state" if value in state else "data",
                value,
                path=paths.get(value, ""),
            )
            for value, part in sorted(
                wanted.items(), key=lambda item: (order.get(item[0], len(order)), item[0])
            )
        ]
        arguments += [Argument("totals", total.value) for total in self.totals]
        return arguments + [Argument("sent", value, stage) for value, stage in sent]

    def _paths(self) -> dict[int, str]:
        """Return the path of every outer value that is an input of the step, or a piece of one."""
        return paths_of(self.partition)

    def _state(self) -> dict[int, int]:
        """Return the replacements of the outer values of state that lives on the stage."""
        found = {}
        for position, result in self.partition.ties:
            before, after = self.outer.inputs[position], self.outer.outputs[result]
            pairs = zip(values_of(before), values_of(after), strict=False)
            if len(values_of(before)) == len(values_of(after)):
                for value, replaced in pairs:
                    if self.around.homes[value][0] == self.stage:
                        found[value] = replaced
        return found

    def _state_after(self, state: list[int]) -> list[int]:
        replaced = self._state()
        return [replaced[value] for value in state]

    def _sent(self) -> list[int]:
        """Return the values of a microbatch that other stages read."""
        read = {
            one.value
            for (stage, _), fragment in self.cut.fragments.items()
            if stage != self.stage
            for one in fragment.inputs
            if one.stage == self.stage
        }
        return [v for f in self.fragments for v in f.outputs if v in read]

    def _results(
        self,
        state_after: Sequence[int],
        totals: Sequence[Argument],
        sent: Sequence[int],
        leaving: Sequence[int],
    ) -> tuple[Argument, ...]:
        """Return what the results are: those of the step have its paths."""
        paths = result_paths_of(self.partition)
        return (
            *(Argument("state", value, path=paths.get(value, "")) for value in state_after),
            *totals,
            *(Argument("sent", value, self.stage) for value in sent),
            *(Argument("data", value, path=paths.get(value, "")) for value in leaving),
        )

    def _leaving(self, state_after: list[int]) -> list[int]:
        """Return the outer values that other stages read, or that the step returns."""
        made = [value for phase in self.phases for value in phase.outputs]
        wanted = {v for entry in self.outer.outputs for v in values_of(entry)}
        wanted |= {v for v, meshes in self.around.needs.items() if set(meshes) - {self.stage}}
        return [value for value in made if value in wanted and value not in state_after]


def paths_of(partition: Partition) -> dict[int, str]:
    """Return the tree path of every outer value that is an input of the step, or rows of one."""
    return _paths(partition.in_paths, partition.outer.inputs)


def result_paths_of(partition: Partition) -> dict[int, str]:
    """Return the tree path of every outer value that is a result of the step, or rows of one."""
    return _paths(partition.out_paths, partition.outer.outputs)


def _paths(names: Sequence[str], entries: Sequence[int | Pieces]) -> dict[int, str]:
    paths = {}
    for path, entry in zip(names, entries, strict=True):
        if isinstance(entry, Pieces):
            for value, (start, stop) in zip(entry.values, entry.bounds, strict=True):
                paths[value] = f"{path}[{start}:{stop}]"
        else:
            paths[entry] = path
    return paths


def values_of(entry: int | Pieces) -> tuple[int, ...]:
    """Return the outer values of an input or output of the step."""
    return (entry,) if isinstance(entry, int) else entry.values


def _repeated(program: Program, times: int) -> Program:
    """Return the program with ops of fragments, and copies made for them, counted `times` times."""

    def inside(op: Op) -> bool:
        return kind_of(op.scope) is not None

    ops = tuple(replace(op, weight=op.weight * times) if inside(op) else op for op in program.ops)
    read = {v for op in program.ops if inside(op) for v in op.inputs if v >= 0}
    values = tuple(
        replace(value, trips=value.trips * times)
        if value.index in read and (value.producer < 0 or not inside(program.ops[value.producer]))
        else value
        for value in program.values
    )
    return replace(program, ops=ops, values=values, fingerprint=f"{program.fingerprint}x{times}")
