"""Runs of one mesh merged into one program: instructions in, fewer instructions out.

A merged program reads what its parts read and do not make themselves, and leaves what others still
read; the rest stays inside, for the compiler to fuse. Instructions between its parts go before it
or after it, as the flow of data says. Where it says both, the program would wait for itself:

    F0@0 + BW0@0 -> F0@1 -> BW0@1 -> F0@0 + BW0@0
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import networkx as nx

from autoshard.lower.mpmd.instructions import (
    Instruction,
    Merged,
    Part,
    Run,
    Script,
    Send,
    Slot,
    Unit,
    frees_of,
    reads_and_writes,
)
from autoshard.solve.schedule.faults import ScheduleError
from autoshard.solve.schedule.task import Task


def merge_script(script: Script, merges: Sequence[Sequence[Task]]) -> Script:
    """The script with the runs of each merge's tasks as one.

    Args:
      merges: tasks that follow each other on a mesh, in order. Tasks with nothing to do are left
        out.

    Raises:
      ScheduleError: merges that would wait for themselves; names all of them, and what for.
    """
    place = {task: n for n, one in enumerate(script.instructions) for task in _tasks(one)}
    groups = [[place[task] for task in merge if task in place] for merge in merges]
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        return script
    leader = list(range(len(script.instructions)))
    for group in groups:
        for number in group:
            leader[number] = group[-1]
    order = _sorted(script.instructions, leader, groups)
    return _Merger(script, {group[-1]: group for group in groups}).script(order)


def _tasks(one: Instruction) -> tuple[Task, ...]:
    return one.tasks if isinstance(one, Run) else ()


def _sorted(
    instructions: Sequence[Instruction], leader: Sequence[int], groups: Sequence[Sequence[int]]
) -> list[int]:
    """The leaders, each after what it reads and after what its mesh ran before it."""
    after: nx.DiGraph[int] = nx.DiGraph()
    after.add_nodes_from(leader)
    writer: dict[Slot, int] = {}
    last: dict[int, int] = {}
    for number, one in enumerate(instructions):
        reads, writes = reads_and_writes(one)
        before = [writer[slot] for slot in reads if slot in writer]
        if isinstance(one, Run):
            mesh = writes[0].mesh
            before += [last[mesh]] if mesh in last else []
            last[mesh] = number
        for other in before:
            if leader[other] != leader[number]:
                after.add_edge(leader[other], leader[number])
        writer.update((slot, number) for slot in writes)
    if nx.is_directed_acyclic_graph(after):
        return list(nx.lexicographical_topological_sort(after))
    members = {group[-1]: group for group in groups}
    cycles = [_cycle(number, after) for number in members]
    faults = [
        " -> ".join(_name(instructions, members.get(n, [n])) for n in (*cycle, cycle[0]))
        for cycle in cycles
        if cycle
    ]
    raise ScheduleError("these merges, which would wait for themselves,", faults)


def _cycle(start: int, after: nx.DiGraph[int]) -> list[int]:
    """The shortest way from a program back to what it waits for; empty where there is none."""
    ways = nx.single_source_shortest_path(after, start)
    return min((ways[one] for one in after.predecessors(start) if one in ways), key=len, default=[])


def _name(instructions: Sequence[Instruction], members: Sequence[int]) -> str:
    first = instructions[members[0]]
    if isinstance(first, Run):
        mesh = first.outputs[0].mesh
        tasks = [str(task) for number in members for task in _tasks(instructions[number])]
        return f"{' + '.join(tasks) or 'around the loop'} (mesh {mesh})"
    if isinstance(first, Send):
        return f"transfer to mesh {first.target.mesh}"
    return "stack"


class _Merger:
    def __init__(self, script: Script, members: Mapping[int, Sequence[int]]) -> None:
        self.old, self.members = script, members
        self.units: list[Unit | Merged] = list(script.units)
        self.known: dict[Hashable, int] = {}
        self.kept = {slot for slots in script.outputs for slot in slots}
        self.readers: dict[Slot, set[int]] = {}
        for number, one in enumerate(script.instructions):
            for slot in reads_and_writes(one)[0]:
                self.readers.setdefault(slot, set()).add(number)

    def script(self, order: Sequence[int]) -> Script:
        instructions = [
            self._merged(self.members[number])
            if number in self.members
            else self.old.instructions[number]
            for number in order
        ]
        used = dict.fromkeys(one.unit for one in instructions if isinstance(one, Run))
        number_of = {unit: number for number, unit in enumerate(sorted(used))}
        instructions = [
            replace(one, unit=number_of[one.unit]) if isinstance(one, Run) else one
            for one in instructions
        ]
        return replace(
            self.old,
            units=tuple(self.units[unit] for unit in sorted(used)),
            instructions=tuple(instructions),
            frees=frees_of(instructions, self.kept),
        )

    def _merged(self, members: Sequence[int]) -> Run:
        runs = [one for n in members if isinstance(one := self.old.instructions[n], Run)]
        made = [slot for one in runs for slot in one.outputs]
        inside = set(made)
        inputs = tuple(
            dict.fromkeys(slot for one in runs for slot in one.inputs if slot not in inside)
        )
        number = {slot: n for n, slot in enumerate((*inputs, *made))}
        outputs = tuple(
            slot
            for slot in made
            if slot in self.kept or self.readers.get(slot, set()).difference(members)
        )
        parts = []
        for one in runs:
            unit = self.old.units[one.unit]
            assert isinstance(unit, Unit)
            parts.append(
                Part(
                    unit,
                    tuple(number[slot] for slot in one.inputs),
                    tuple(number[slot] for slot in one.outputs),
                )
            )
        results = tuple(number[slot] for slot in outputs)
        key = tuple((one.unit, *part[1:]) for one, part in zip(runs, parts, strict=True)), results
        if key not in self.known:
            self.known[key] = len(self.units)
            name = "+".join(part.unit.name for part in parts)
            self.units.append(Merged(name, parts[0].unit.mesh, tuple(parts), len(inputs), results))
        tasks = tuple(task for one in runs for task in one.tasks)
        return Run(self.known[key], inputs, outputs, tasks, tuple(made))
