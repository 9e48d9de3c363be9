"""Asking a compiler whether it has a habit.

    run_probe(habit)    the probe's program is compiled for its machine, and the module read

A probe reads kernels, not lines of text: `Reading` walks a scheduled module in its order, through
loops, calls and branches, and says of everything that runs what it writes and reads, in which order
that lies in memory, and which instructions run in it. The compile is that of any plan: a process
of its own, and kept on disk.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autoshard.compiler.compiled import Compiled, ask, read
from autoshard.compiler.hlo.events import OPCODES
from autoshard.compiler.hlo.module import Computation, Instruction, Module
from autoshard.compiler.hlo.schedule import Schedule, read_schedule
from autoshard.compiler.hlo.text import read_module
from autoshard.compiler.request import versions
from autoshard.compiler.target import Kind, target_of, why_missing
from autoshard.machine.compiler import LOST, installed_release, lost
from autoshard.machine.load import load
from autoshard.machine.machine import under_flags
from autoshard.plan.plan import MeshShape
from autoshard.units import counted
from autoshard.xla import Habit, Kernel, Probe

Status = Literal["holds", "lost", "broken", "no probe", "not installed"]

TIME_LIMIT = 300.0
"""Seconds that the compile of a probe may take."""
NOT_RUN = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id"}
)
"""Instructions that say where something is, and run nothing."""
_ARRAY = re.compile(r"([a-z]\w*\[[^\]]*\])(?:\{([^{}]*)\})?")
KINDS: dict[str, Kind] = {"xla:gpu": "gpu", "xla:tpu": "tpu"}
_PACKAGES = {
    "gpu": ("jax-cuda12-plugin", "jax-cuda13-plugin"),
    "tpu": ("libtpu",),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a compiler said of a habit.

    Attributes:
      name: of the habit.
      status: see `autoshard.xla.habits.records`.
      detail: why it is broken, or what is missing.
      version: of the compiler's package.
      seconds: that asking took.
    """

    name: str
    status: Status
    detail: str = ""
    version: str = ""
    seconds: float = 0.0


def run_probe(habit: Habit, *, cache: Path | None = None, use_cache: bool = True) -> Outcome:
    """Ask the installed compiler whether it has a habit.

    Args:
      habit: of a compiler.
      cache: folder of earlier answers; by default the user's.
      use_cache: whether to look there, and to keep the answer there.
    """
    if habit.probe is None:
        return Outcome(habit.name, "no probe")
    kind = KINDS[habit.compiler]
    gone = lost(habit.name, installed_release())
    missing = why_missing(kind)
    if missing:
        return Outcome(habit.name, "not installed", missing)
    start = time.perf_counter()
    try:
        built = compile_probe(habit.probe, kind, cache=cache, use_cache=use_cache)
        holds = bool(habit.probe.reading(built))
        detail = "" if holds else "the module says otherwise"
    except Exception as error:  # a reading may fail in any way where the module is unlike the claim
        holds, detail = False, f"{type(error).__name__}: {error}"
    if gone:
        detail = f"believed to be lost from jaxlib {LOST[habit.name]} on"
    status: Status = "broken" if holds == gone else "lost" if gone else "holds"
    seconds = time.perf_counter() - start
    return Outcome(habit.name, status, detail, version_of(kind), seconds)


def version_of(kind: Kind) -> str:
    """The package of a compiler and its version, as habits name them; empty where it is not."""
    found = versions()
    return next((f"{name} {found[name]}" for name in _PACKAGES[kind] if name in found), "")


def compile_probe(
    probe: Probe, kind: Kind, *, cache: Path | None = None, use_cache: bool = True
) -> Reading:
    """The program of a probe, compiled for its machine.

    Raises:
      CompileError: the compiler refuses it.
    """
    machine = under_flags(load(probe.machine), probe.flags)
    mesh = MeshShape(tuple(probe.mesh), tuple(probe.mesh.values()))
    target = target_of(machine, mesh, kind)
    stage = _lowered(probe, target.platform)
    asked = ask(stage, target, cache=cache, use_cache=use_cache, time_limit=TIME_LIMIT)
    compiled = read(asked.answer, target, mesh, machine, from_cache=asked.from_cache)
    written = asked.answer.schedule
    return Reading(
        read_module(asked.answer.final), compiled, read_schedule(written) if written else None
    )


def _lowered(probe: Probe, platform: str) -> Any:
    """The program with its shardings, lowered for a platform that need not be there."""
    import jax
    from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

    step, arguments = probe.build()
    sizes, names = tuple(probe.mesh.values()), tuple(probe.mesh)
    mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))
    leaves, tree = jax.tree.flatten(tuple(arguments))
    with jax.sharding.use_abstract_mesh(mesh):
        results = jax.tree.structure(jax.eval_shape(step, *arguments))

    def placed(specs: Sequence[tuple[Any, ...]], structure: Any) -> Any:
        return jax.tree.unflatten(
            structure, [NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs]
        )

    if len(probe.inputs) != len(leaves):
        raise ValueError(
            f"the probe on {probe.machine} has {counted(len(leaves), 'argument')}, but "
            f"{counted(len(probe.inputs), 'sharding')} of inputs; give one for each"
        )
    if len(probe.outputs) != results.num_leaves:
        raise ValueError(
            f"the probe on {probe.machine} has {results.num_leaves} results, but "
            f"{counted(len(probe.outputs), 'sharding')} of outputs; give one for each"
        )
    jitted = jax.jit(
        step,
        in_shardings=placed(probe.inputs, tree),
        out_shardings=placed(probe.outputs, results),
        donate_argnums=probe.donated,
    )
    with jax.sharding.use_abstract_mesh(mesh):
        return jitted.trace(*arguments).lower(lowering_platforms=(platform,))


# -- reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ran:
    """A `Kernel` of a module; see `autoshard.xla.habits.records`."""

    name: str
    opcode: str
    opcodes: frozenset[str]
    writes: tuple[str, ...]
    orders: tuple[tuple[int, ...], ...]
    reads: tuple[str, ...]
    text: str
    depth: int
    position: int
    operands: tuple[str, ...] = ()
    inside: str = ""


class Reading:
    """A `Built` program: what a module and the compiler's figures say.

    Attributes:
      module: scheduled.
      compiled: the compiler's figures; None where only the module is known.
      schedule: the compiler's own timeline, where it writes one.
    """

    def __init__(
        self,
        module: Module,
        compiled: Compiled | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.module, self.compiled, self.schedule = module, compiled, schedule
        entry = module.computations[module.entry]
        self._kernels = tuple(
            _ran(module, computation, one, depth, position)
            for position, (computation, one, depth) in enumerate(_run(module, entry, 0))
        )

    @property
    def peak_bytes(self) -> int:
        return self._figures.memory.peak_bytes

    @property
    def temporary_bytes(self) -> int:
        return self._figures.memory.temporary_bytes

    @property
    def step_seconds(self) -> float:
        timeline = self._figures.timeline
        if timeline is None:
            raise ValueError("this compiler estimates no time; probe what is read off its module")
        return timeline.seconds

    @property
    def _figures(self) -> Compiled:
        if self.compiled is None:
            raise ValueError(
                "only the module is known, which has no memory and no times; compile it"
            )
        return self.compiled

    def kernels(self, *opcodes: str, writes: str = "", reads: str = "") -> Sequence[Ran]:
        return [
            one
            for one in self._kernels
            if one.opcodes.issuperset(opcodes)
            and (not writes or any(_fits(writes, type_) for type_ in one.writes))
            and (not reads or any(_fits(reads, type_) for type_ in one.reads))
        ]

    def seconds_of(self, kernel: Kernel) -> float:
        timelines = self.schedule.computations.values() if self.schedule else ()
        ends = {one.name for one in self._kernels if one.operands[:1] == (kernel.name,)}
        for timeline in timelines:
            if kernel.name in timeline.starts:
                done = next((one for one in ends if one.endswith("done") or "done." in one), "")
                if kernel.opcode.endswith("-start") and done in timeline.starts:
                    return timeline.starts[done] - timeline.starts[kernel.name]
                return timeline.duration(kernel.name)
        raise ValueError(f"the compiler's timeline says nothing of {kernel.name}")

    def collectives(self, kind: str = "") -> Sequence[Ran]:
        kinds = {kind} if kind else set(OPCODES)
        started = {f"{one}-start" for one in kinds}
        return [
            one
            for one in self._kernels
            if one.opcodes & (kinds | started) and not one.opcode.endswith(("-done", "-update"))
        ]


def types_of(shape: str) -> tuple[str, ...]:
    """The arrays of a shape's text, without their layouts."""
    return tuple(found[1].replace(" ", "") for found in _ARRAY.finditer(shape))


def orders_of(shape: str) -> tuple[tuple[int, ...], ...]:
    """Of each array of a shape's text, its dimensions from outermost to innermost."""
    found: list[tuple[int, ...]] = []
    for one in _ARRAY.finditer(shape):
        layout = (one[2] or "").partition(":")[0]
        minor_first = [int(number) for number in layout.split(",") if number.strip()]
        found.append(tuple(reversed(minor_first)))
    return tuple(found)


def _fits(pattern: str, type_: str) -> bool:
    """Whether a type is like a pattern in which ``*`` stands for any part."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), type_) is not None


def _run(
    module: Module, computation: Computation, depth: int
) -> Iterator[tuple[Computation, Instruction, int]]:
    """What runs, in its order, and in how many loops."""
    for one in computation.instructions:
        if one.opcode == "while":
            for body in one.called("body"):
                yield from _run(module, module.computations[body], depth + 1)
        elif one.opcode in ("call", "conditional"):
            for called in _called(one):
                yield from _run(module, module.computations[called], depth)
        elif one.opcode not in NOT_RUN:
            yield computation, one, depth


def _called(one: Instruction) -> tuple[str, ...]:
    """Computations whose instructions run as part of one; of a reduction, not its reducer."""
    if one.opcode == "call":
        return one.called("to_apply")
    if one.opcode == "conditional":
        return one.called("branch_computations", "true_computation", "false_computation")
    return one.called("calls", "body")


def _inside(module: Module, one: Instruction) -> Iterator[Instruction]:
    for called in _called(one):
        for inner in module.computations[called].instructions:
            yield inner
            yield from _inside(module, inner)


def _ran(
    module: Module, computation: Computation, one: Instruction, depth: int, position: int
) -> Ran:
    inner = list(_inside(module, one))
    made = (computation.by_name[name] for name in one.operands if name in computation.by_name)
    return Ran(
        name=one.name,
        opcode=one.opcode,
        opcodes=frozenset({one.opcode, *(each.opcode for each in inner)}),
        writes=types_of(one.shape_text),
        orders=orders_of(one.shape_text),
        reads=tuple(type_ for each in made for type_ in types_of(each.shape_text)),
        text=_text(one),
        depth=depth,
        position=position,
        operands=tuple(_maker(computation, name) for name in one.operands),
        inside="\n".join(_text(each) for each in inner),
    )


def _maker(computation: Computation, name: str) -> str:
    """The name of what makes an operand: what is only viewed otherwise is looked through."""
    made = computation.by_name.get(name)
    while made is not None and made.opcode in ("bitcast", "get-tuple-element") and made.operands:
        name = made.operands[0]
        made = computation.by_name.get(name)
    return name


def _text(one: Instruction) -> str:
    return f"{one.name} = {one.shape_text} {one.opcode}({one.argument}){one.rest}"
