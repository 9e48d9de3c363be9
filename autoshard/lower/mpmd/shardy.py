"""A pipelined step as a StableHLO module for Shardy:MPMD, partitioned by Shardy's own passes.

    exported = export_mpmd(lowered)
    exported.text                  # named computations, one function per program
    partitioned = exported.partition()
    partitioned.fragments          # per mesh, in the order in which they run
    partitioned.ifrt_text          # IFRT IR, which Pathways executes

Every run of a program becomes a named computation: `stageS` with transpose count 0 for F and 1 for
B or BW, `stageS_weights` for W, `beforeL_meshM` and `afterL_meshM` around the loop; the microbatch
is its call counter. The assignment names the mesh (and stage) of each, one schedule rule per mesh
its order, which also is the order of the module (see `compat.partition_mpmd`). Transfers are
Shardy's to insert: only between named computations, none is inferred.

The dialect and its passes are described in the RFC of Shardy:MPMD
(https://github.com/openxla/shardy/blob/main/rfcs/2025-06-18-mpmd-rfc.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.compat import MpmdFragment, MpmdMerge
from autoshard.lower.interpret import LoweringError
from autoshard.lower.mpmd.instructions import Gather, Run, Send, Slot, Unit
from autoshard.lower.mpmd.place import LoweredMpmd
from autoshard.lower.mpmd.programs import function_of
from autoshard.lower.mpmd.shardy_partitioned import ExportedMpmd, mesh_name, origin_of
from autoshard.solve.schedule.task import Task

_TYPES = {
    "float64": "f64",
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "ui64",
    "uint32": "ui32",
    "uint16": "ui16",
    "uint8": "ui8",
    "bool": "i1",
}
_INDEX = "tensor<i32>"


def export_mpmd(lowered: LoweredMpmd) -> ExportedMpmd:
    """Write a lowered step as a module for Shardy:MPMD, with a rule for everything that is merged.

    Raises:
      LoweringError: a type that MLIR text has no name for here.
    """
    return _Export(lowered).run()


class _Export:
    def __init__(self, lowered: LoweredMpmd) -> None:
        self.lowered = lowered
        self.partition, self.script = lowered.partition, lowered.unmerged
        self.names: dict[Slot, str] = {}
        self.functions: dict[int, str] = {}
        self.modules: list[str] = []
        self.lines: list[str] = []
        self.assignment: dict[str, str | tuple[str, int]] = {}

    def run(self) -> ExportedMpmd:
        arguments, input_meshes, donated = [], [], []
        for position, pieces in enumerate(self.script.inputs):
            for slots in pieces:
                name = f"%arg{len(arguments)}"
                if position in self.partition.donated:
                    donated.append(len(arguments))
                for slot in slots:
                    self.names[slot] = name
                arguments.append(f"{name}: {self._type(slots[0])}")
                input_meshes.append(mesh_name(slots[0].mesh))
        for one in self.script.instructions:
            if isinstance(one, Run):
                self._run(one)
            elif isinstance(one, Send):
                self.names[one.target] = self.names[one.source]
            else:
                self._gather(one)
        results = [slot for slots in self.script.outputs for slot in slots]
        types = ", ".join(map(self._type, results))
        values = ", ".join(self.names[slot] for slot in results)
        indices = [
            f"%index{k} = stablehlo.constant dense<{k}> : {_INDEX}"
            for k in range(self.partition.microbatches)
        ]
        body = "\n".join(f"    {line}" for line in (*indices, *self.lines))
        main = (
            f"  func.func public @main({', '.join(arguments)}) -> ({types}) {{\n{body}\n"
            f"    return {values} : {types}\n  }}"
        )
        text = "\n".join(["module @step {", main, *self.modules, "}"])
        meshes = tuple(
            (mesh_name(k), tuple(mesh.shape.items())) for k, mesh in enumerate(self.lowered.meshes)
        )
        order = tuple(
            tuple(map(self._fragment, tasks)) for tasks in self.lowered.order if len(tasks) > 1
        )
        return ExportedMpmd(
            text,
            meshes,
            self.assignment,
            tuple(input_meshes),
            tuple(mesh_name(slot.mesh) for slot in results),
            order,
            self._merges(),
            tuple(donated),
        )

    def _merges(self) -> tuple[MpmdMerge, ...]:
        merges = []
        for tasks in self.lowered.merges:
            sources = tuple(map(self._fragment, tasks))
            origins = tuple(origin for one in sources for origin in one.origins)
            target = MpmdFragment(origins, sources[0].mesh, call_counter=sources[0].call_counter)
            merges.append(MpmdMerge(sources, target))
        return tuple(merges)

    def _fragment(self, task: Task) -> MpmdFragment:
        name, count = origin_of(task)
        mesh = mesh_name(self.lowered.placement[task.stage])
        stage = None if task.kind == "W" else task.stage
        return MpmdFragment(((name, count),), mesh, stage, task.microbatch)

    def _aval(self, slot: Slot) -> Any:
        inner = slot.microbatch >= 0 and not slot.total
        return (self.partition.cut.graph if inner else self.partition.outer.graph).avals[slot.value]

    def _type(self, slot: Slot) -> str:
        return _type_text(self._aval(slot))

    def _run(self, one: Run) -> None:
        unit = self.script.units[one.unit]
        assert isinstance(unit, Unit)
        callee = self._function(one.unit, unit, one)
        operands = [self.names[slot] for slot in one.inputs]
        types = [self._type(slot) for slot in one.inputs]
        if unit.indexed:
            operands.append(f"%index{one.tasks[0].microbatch}")
            types.append(_INDEX)
        made = ", ".join(map(self._type, one.outputs))
        counter = f" {{call_counter = {one.tasks[0].microbatch} : ui32}}" if one.tasks else ""
        self._write(
            one.outputs,
            f"mpmd.call @{callee}({', '.join(operands)}){counter} : "
            f"({', '.join(types)}) -> ({made})",
        )

    def _gather(self, one: Gather) -> None:
        name = f"stack{one.target.value}_mesh{one.target.mesh}"
        self.assignment[name] = mesh_name(one.target.mesh)
        program = self._add_module(
            name, lambda *arrays: (jnp.stack(arrays),), [self._aval(slot) for slot in one.sources]
        )
        types = [self._type(slot) for slot in one.sources]
        callee = self._add_callee(name, f'"{name}"', program, types, [self._type(one.target)])
        operands = ", ".join(self.names[slot] for slot in one.sources)
        self._write(
            (one.target,),
            f"mpmd.call @{callee}({operands}) : ({', '.join(types)}) -> ({self._type(one.target)})",
        )

    def _write(self, outputs: Sequence[Slot], operation: str) -> None:
        number = len(self.lines)
        self.lines.append(f"%r{number}:{len(outputs)} = {operation}")
        for k, slot in enumerate(outputs):
            self.names[slot] = f"%r{number}#{k}"

    def _function(self, number: int, unit: Unit, one: Run) -> str:
        """The function of a unit: a named computation that calls its program."""
        if number not in self.functions:
            if not one.tasks:
                name, count = unit.name.replace("@", "_mesh"), 0
                self.assignment[name] = mesh_name(unit.mesh)
            else:
                (task,) = one.tasks
                name, count = origin_of(task)
                mesh = mesh_name(unit.mesh)
                # Of one stage, only one computation may have a transpose count and a microbatch.
                self.assignment[name] = mesh if task.kind == "W" else (mesh, task.stage)
            avals = [self._aval(slot) for slot in one.inputs]
            if unit.indexed:
                avals.append(jax.ShapeDtypeStruct((), jnp.int32))
            label = f"unit{number}_{unit.name.replace('@', '_mesh')}"
            program = self._add_module(label, function_of(unit), avals)
            types, made = list(map(_type_text, avals)), list(map(self._type, one.outputs))
            origin = f'"{name}"' + (f"({count})" if count else "")
            self.functions[number] = self._add_callee(label, origin, program, types, made)
        return self.functions[number]

    def _add_callee(
        self, label: str, origin: str, program: str, types: Sequence[str], made: Sequence[str]
    ) -> str:
        outer = [f"%arg{k}" for k in range(len(types))]
        inner = [f"%in{k}" for k in range(len(types))]
        given, taken, results = ", ".join(outer), ", ".join(inner), ", ".join(made)
        head = ", ".join(f"{a}: {t}" for a, t in zip(outer, types, strict=True))
        body = ", ".join(f"{a}: {t}" for a, t in zip(inner, types, strict=True))
        signature = f"({', '.join(types)}) -> ({results})"
        passed = ", ".join(f"%x#{k}" for k in range(len(made)))
        named = ", ".join(f"%r#{k}" for k in range(len(made)))
        self.modules.append(
            f"""  func.func private @{label}({head}) -> ({results}) {{
    %r:{len(made)} = mpmd.named_computation<{origin}> ({given}) ({body}) {{
      %x:{len(made)} = func.call @{program}({taken}) : {signature}
      mpmd.return {passed} : {results}
    }} : {signature}
    return {named} : {results}
  }}"""
        )
        return label

    def _add_module(self, name: str, function: Any, avals: Sequence[Any]) -> str:
        """The functions of a program, renamed so that no other program has them."""
        lowered = (
            jax.jit(function, keep_unused=True).trace(*avals).lower(lowering_platforms=("tpu",))
        )
        text = lowered.as_text()
        body = text[text.index("\n") : text.rindex("}")]  # without the module around it
        body = re.sub(r"@([\w.]+)", rf"@{name}_\1", body)
        body = re.sub(r" \{jax\.result_info = \"[^\"]*\"\}", "", body)
        self.modules.append(body.replace("func.func public", "func.func private"))
        return f"{name}_main"


def _type_text(aval: Any) -> str:
    name = str(aval.dtype)
    if name not in _TYPES:
        raise LoweringError(
            f"{name} cannot be exported to Shardy:MPMD; it knows {', '.join(_TYPES)}"
        )
    return f"tensor<{''.join(f'{size}x' for size in aval.shape)}{_TYPES[name]}>"
