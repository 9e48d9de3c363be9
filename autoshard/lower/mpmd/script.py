"""The instructions of a step, from its fragments, its phases and an order of tasks.

Tasks of the loop stand in an order in which everything that a task reads was made before, and which
keeps the order of every mesh. What another mesh reads is sent as soon as it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autoshard.lower.mpmd.cut.fragments import SHARED, Cut, Fragment, Key
from autoshard.lower.mpmd.cut.meshes import Around, Phase
from autoshard.lower.mpmd.cut.outer import Outer, Total
from autoshard.lower.mpmd.cut.pieces import Pieces
from autoshard.lower.mpmd.instructions import (
    Gather,
    Instruction,
    Run,
    Script,
    Send,
    Slot,
    Unit,
    frees_of,
)
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.task import Order, Task


def write_script(
    cut: Cut,
    outer: Outer,
    around: Around,
    mesh_of: Sequence[int],
    order: Order,
    microbatches: int,
    sliced: Iterable[int],
    *,
    returned: Mapping[int, int] | None = None,
) -> Script:
    """Write the instructions of a step.

    Args:
      cut, outer, around: the step in fragments and phases.
      mesh_of: the mesh of every stage.
      order: the tasks of every mesh.
      microbatches: how many there are.
      sliced: values that a microbatch takes its part of.
      returned: the meshes of results that the user wants there, by position.

    Raises:
      ScheduleError: a task is missing, twice there, or on a mesh that is not its stage's; or the
        meshes wait for each other.
    """
    check_order(order, mesh_of, microbatches)
    return _Writer(
        cut, outer, around, tuple(mesh_of), order, microbatches, frozenset(sliced)
    ).write(returned or {})


def check_order(order: Order, mesh_of: Sequence[int], microbatches: int) -> None:
    """Refuse an order that is not one of these stages on these meshes."""
    seen: dict[tuple[int, int], list[str]] = {}
    faults = []
    for mesh, tasks in enumerate(order):
        for task in tasks:
            if not 0 <= task.stage < len(mesh_of):
                faults.append(f"{task} is of no stage; there are {len(mesh_of)}")
            elif mesh_of[task.stage] != mesh:
                faults.append(f"{task} is on mesh {mesh}, its stage on {mesh_of[task.stage]}")
            elif not 0 <= task.microbatch < microbatches:
                faults.append(f"{task} is of no microbatch; there are {microbatches}")
            else:
                seen.setdefault((task.stage, task.microbatch), []).append(task.kind)
    for stage in range(len(mesh_of)):
        for microbatch in range(microbatches):
            kinds = sorted(seen.get((stage, microbatch), []))
            if kinds not in (["BW", "F"], ["B", "F", "W"]):
                faults.append(
                    f"stage {stage}, microbatch {microbatch} has {', '.join(kinds) or 'no tasks'}"
                )
    if faults:
        raise ScheduleError(
            "the order (which needs F and BW, or F, B and W, once for every stage and microbatch)",
            faults,
        )


class _Writer:
    def __init__(
        self,
        cut: Cut,
        outer: Outer,
        around: Around,
        mesh_of: tuple[int, ...],
        order: Order,
        microbatches: int,
        sliced: frozenset[int],
    ) -> None:
        self.cut, self.outer, self.around = cut, outer, around
        self.mesh_of, self.order, self.microbatches = mesh_of, order, microbatches
        self.sliced = sliced
        self.units: list[Unit] = []
        self.instructions: list[Instruction] = []
        self.ready: set[Slot] = set()
        self.kinds: set[Key] = {(task.stage, task.kind) for tasks in order for task in tasks}
        self.totals: dict[Key, list[Total]] = {}
        self.counts: dict[int, int] = {}
        self.readers = self._readers()

    def write(self, returned: Mapping[int, int]) -> Script:
        inputs = tuple(
            tuple(self._placed(value) for value in _values(entry)) for entry in self.outer.inputs
        )
        for pieces in inputs:
            for slots in pieces:
                self.ready.update(slots)
                self._spread(slots[0].value)
        for phase in self.around.phases:
            if phase.early:
                self._phase(phase)
        fragments = {key: self._fragment_unit(key) for key in sorted(self.kinds)}
        self._loop(fragments)
        for stack in self.outer.stacks:
            mesh, stage = self.mesh_of[stack.source.stage], stack.source.stage
            sources = tuple(
                Slot(mesh, stack.source.value, stage, i) for i in range(self.microbatches)
            )
            self.instructions.append(Gather(sources, Slot(mesh, stack.value)))
            self.ready.add(Slot(mesh, stack.value))
            self._spread(stack.value)
        for total in self.outer.totals:
            self._spread(total.value)
        for phase in self.around.phases:
            if not phase.early:
                self._phase(phase)
        outputs = tuple(
            tuple(
                Slot(returned.get(number, self.around.homes[value][0]), value)
                for value in _values(entry)
            )
            for number, entry in enumerate(self.outer.outputs)
        )
        kept = {slot for slots in outputs for slot in slots}
        return Script(
            tuple(self.units),
            tuple(self.instructions),
            inputs,
            outputs,
            frees_of(self.instructions, kept),
        )

    def _placed(self, value: int) -> tuple[Slot, ...]:
        return tuple(Slot(mesh, value) for mesh in self.around.homes[value])

    def _spread(self, value: int) -> None:
        """Send an outer value from its home to every mesh that reads it and has it not."""
        homes = self.around.homes[value]
        for mesh in self.around.needs.get(value, ()):
            if mesh not in homes:
                self._send(Slot(homes[0], value), Slot(mesh, value))

    def _send(self, source: Slot, target: Slot) -> None:
        if target not in self.ready:
            self.instructions.append(Send(source, target))
            self.ready.add(target)

    def _phase(self, phase: Phase) -> None:
        self.units.append(
            Unit(
                str(phase),
                phase.mesh,
                phase.nodes,
                phase.inputs,
                (False,) * len(phase.inputs),
                (),
                phase.outputs,
            )
        )
        self._run(
            len(self.units) - 1,
            tuple(Slot(phase.mesh, value) for value in phase.inputs),
            tuple(Slot(phase.mesh, value) for value in phase.outputs),
        )
        for value in phase.outputs:
            if self.around.homes[value][0] == phase.mesh:
                self._spread(value)

    def _run(
        self,
        unit: int,
        inputs: tuple[Slot, ...],
        outputs: tuple[Slot, ...],
        *tasks: Task,
    ) -> None:
        self.instructions.append(Run(unit, inputs, outputs, tasks))
        self.ready.update(outputs)

    # -- the loop --------------------------------------------------------------------------

    def _readers(self) -> dict[tuple[int, int], set[int]]:
        """For every value of a stage the meshes that read it."""
        result: dict[tuple[int, int], set[int]] = {}
        for key in self.kinds:
            for source in self.cut.fragments[key].inputs:
                if source.stage != SHARED:
                    meshes = result.setdefault((source.value, source.stage), set())
                    meshes.add(self.mesh_of[key[0]])
        return result

    def _fragment_unit(self, key: Key) -> int:
        fragment = self.cut.fragments[key]
        stage = key[0]
        self.totals[key] = [
            total
            for total in self.outer.totals
            if total.source.stage == stage and total.source.value in fragment.outputs
        ]
        stacked = {s.source.value for s in self.outer.stacks if s.source.stage == stage}
        outputs = tuple(
            value
            for value in fragment.outputs
            if (value, stage) in self.readers or value in stacked
        )
        self.units.append(
            Unit(
                str(fragment),
                self.mesh_of[stage],
                fragment.nodes,
                tuple(source.value for source in fragment.inputs),
                tuple(source.value in self.sliced for source in fragment.inputs),
                tuple(total.source.value for total in self.totals[key]),
                outputs,
            )
        )
        return len(self.units) - 1

    def _inputs(self, fragment: Fragment, task: Task) -> tuple[Slot, ...]:
        mesh = self.mesh_of[task.stage]
        return tuple(
            Slot(mesh, self.outer.operands[source.value])
            if source.stage == SHARED
            else Slot(mesh, source.value, source.stage, task.microbatch)
            for source in fragment.inputs
        )

    def _loop(self, units: Mapping[Key, int]) -> None:
        left = [list(reversed(tasks)) for tasks in self.order]
        while any(left):
            moved = False
            for tasks in left:
                if not tasks:
                    continue
                task = tasks[-1]
                fragment = self.cut.fragments[task.stage, task.kind]
                if self.ready.issuperset(self._inputs(fragment, task)):
                    tasks.pop()
                    self._task(task, units[task.stage, task.kind])
                    moved = True
            if not moved:
                self._stuck([tasks[-1] for tasks in left if tasks])

    def _task(self, task: Task, unit: int) -> None:
        key = task.stage, task.kind
        mesh, fragment = self.mesh_of[task.stage], self.cut.fragments[key]
        before, after = [], []
        for total in self.totals[key]:
            count = self.counts.get(total.value, 0)
            before.append(self._sum(total, mesh, count))
            after.append(self._sum(total, mesh, count + 1))
            self.counts[total.value] = count + 1
        made = tuple(
            Slot(mesh, value, task.stage, task.microbatch) for value in self.units[unit].outputs
        )
        inputs = (*self._inputs(fragment, task), *before)
        if made or after:
            self._run(unit, inputs, (*made, *after), task)
        for slot in made:
            for other in sorted(self.readers.get((slot.value, task.stage), ())):
                if other != mesh:
                    self._send(slot, slot._replace(mesh=other))

    def _sum(self, total: Total, mesh: int, count: int) -> Slot:
        if count == 0:
            return Slot(mesh, total.initial)
        if count == self.microbatches:
            return Slot(mesh, total.value)
        return Slot(mesh, total.value, SHARED, count, total=True)

    def _stuck(self, waiting: Sequence[Task]) -> None:
        faults = []
        for task in waiting:
            fragment = self.cut.fragments[task.stage, task.kind]
            missing = next(s for s in self._inputs(fragment, task) if s not in self.ready)
            mesh = self.mesh_of[task.stage]
            faults.append(f"mesh {mesh}: {task} waits for what stage {missing.stage} makes")
        raise ScheduleError("the order, in which meshes wait for each other,", faults)


def _values(entry: int | Pieces) -> tuple[int, ...]:
    return (entry,) if isinstance(entry, int) else entry.values
