"""What a compiler says of a plan: memory, collectives and the time of a step.

    lowered = autoshard.lower(plan, step, *args)
    compiled = compile_plan(lowered, autoshard.load_machine("v5p-64"))
    print(compiled.memory, compiled.timeline, *compiled.partitioned, sep="\n")

`compile_lowered` does the same for any lowered step, such as one with shardings set by hand. Each
compile runs in a process of its own and is kept on disk, see `autoshard.compiler.cache`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from autoshard import compat
from autoshard.compiler import cache as answers
from autoshard.compiler.cache import Answer
from autoshard.compiler.hlo.collectives import HloCollective, find, made_once
from autoshard.compiler.hlo.module import Module
from autoshard.compiler.hlo.places import Place
from autoshard.compiler.hlo.rings import fold_rings
from autoshard.compiler.hlo.schedule import Schedule, read_schedule
from autoshard.compiler.hlo.text import read_module
from autoshard.compiler.hlo.timeline import Timeline, seconds_of_written, timeline
from autoshard.compiler.hlo.transfers import HostTransfer, transfers
from autoshard.compiler.prices import MachinePrices
from autoshard.compiler.request import Request
from autoshard.compiler.target import CompileError, Kind, Target, kind_of, target_of, why_missing
from autoshard.lower.facts.kernel_times import KernelTime, kernel_times
from autoshard.lower.facts.loop_trips import LoopTrips, loop_trips
from autoshard.lower.spmd import Lowered, LoweringError
from autoshard.machine.machine import Machine
from autoshard.plan.plan import MeshShape
from autoshard.units import counted

_TOTAL = re.compile(r"^Memory Space: default.*\nTotal bytes: (\d+)", re.MULTILINE)
"""The bytes in a chip's memory, in XLA:TPU's report."""
TIME_LIMIT = 1800.0
"""Seconds that a compile may take unless something else is said."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device, as the compiler allocates them.

    Attributes:
      argument_bytes, output_bytes: of inputs and results; `alias_bytes` of them are both.
      temporary_bytes: one block for everything in between. XLA:TPU's own figure has blocks in it
        that do not lie in its memory at once (a step of 18.2 GiB by that figure compiles for a chip
        of 15.75 GiB); here it is that of its report, by which it says what does not fit.
      code_bytes: the program itself, where it lies in device memory.
      host_bytes: of all that lies in the host's memory.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    code_bytes: int = 0
    host_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """What the program occupies while it runs."""
        own = self.output_bytes - self.alias_bytes
        return self.argument_bytes + own + self.temporary_bytes


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler said.

    Attributes:
      kind: which compiler.
      device_kind: what it calls the device.
      memory: on one device.
      partitioned: the collectives right after partitioning, those that are equal once: what the
        shardings cause.
      final: those of the scheduled program, after the backend's rewrites.
      transfers: of that program, to the host's memory and from it.
      timeline: of one step; None for the CPU, whose compiler estimates nothing.
      basis: what the timeline rests on.
      compile_seconds: of the compile, when it was made.
      from_cache: whether that was earlier.
      memory_report: the compiler's list of what is alive at the peak.
      key: under which the answer is kept, see `recall`.
    """

    kind: Kind
    device_kind: str
    memory: Memory
    partitioned: tuple[HloCollective, ...]
    final: tuple[HloCollective, ...]
    timeline: Timeline | None
    basis: str
    compile_seconds: float
    from_cache: bool = False
    memory_report: str = ""
    key: str = ""
    transfers: tuple[HostTransfer, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the memory report."""
        data = asdict(self)
        del data["memory_report"]
        data["memory"]["peak_bytes"] = self.memory.peak_bytes
        if self.timeline is not None:
            data["timeline"]["parts"] = [
                {"scope": scope, "product": product, "seconds": seconds}
                for (scope, product), seconds in self.timeline.parts.items()
            ]
        return data


def compile_plan(
    lowered: Lowered,
    machine: Machine,
    *,
    kind: Kind | None = None,
    cache: Path | None = None,
    use_cache: bool = True,
    time_limit: float = TIME_LIMIT,
) -> Compiled:
    """Compile a lowered plan for a machine that need not be there.

    Args:
      lowered: what `autoshard.lower` returns.
      machine: with as many chips as the plan's mesh.
      kind: which compiler; by default the one for the machine's chips, the CPU's if there is none.
      cache: folder of earlier answers; by default the user's.
      use_cache: whether to look there, and to keep the answer there.
      time_limit: seconds after which the compile is ended.

    Raises:
      CompileError: the compiler is not installed, does not know the machine, refuses the program,
        crashes or takes too long; the message says which, with its own words.
      MachineError: the machine has another number of chips than the mesh.
    """
    mesh = lowered.plan.mesh
    target = target_of(machine, mesh, kind or kind_of(machine))
    if target.kind == "gpu":
        target = replace(target, options={**target.options, **lowered.compiler_options})
    try:
        stage = lowered.lower(platforms=(target.platform,))
    except LoweringError as error:
        raise CompileError(str(error)) from error
    return compile_lowered(
        stage,
        mesh,
        machine,
        target=target,
        cache=cache,
        use_cache=use_cache,
        time_limit=time_limit,
        loops=loop_trips(lowered.program),
        kernels=kernel_times(lowered.program, lowered.plan.decisions, mesh.sizes, machine.chip),
    )


def compile_lowered(
    stage: Any,
    mesh: MeshShape,
    machine: Machine,
    *,
    target: Target | None = None,
    cache: Path | None = None,
    use_cache: bool = True,
    time_limit: float = TIME_LIMIT,
    loops: Sequence[LoopTrips] = (),
    kernels: Sequence[KernelTime] = (),
) -> Compiled:
    """Compile a `jax.stages.Lowered` whose inputs and outputs all carry shardings on `mesh`.

    It must have been lowered for the target's platform: `trace(...).lower(lowering_platforms=...)`.
    `loops` and `kernels` are those of its program, for trip counts that the compiler cannot tell,
    and for times that it does not. The rest is as for `compile_plan`.
    """
    target = target or target_of(machine, mesh, kind_of(machine))
    asked = ask(stage, target, cache=cache, use_cache=use_cache, time_limit=time_limit)
    of_program = {"loops": loops, "kernels": kernels}
    found = read(asked.answer, target, mesh, machine, from_cache=asked.from_cache, **of_program)
    return replace(found, key=asked.key)


class Asked(NamedTuple):
    """A compiler's answer, the key under which it is kept, and whether it was there already."""

    answer: Answer
    key: str
    from_cache: bool


def ask(
    stage: Any,
    target: Target,
    *,
    cache: Path | None = None,
    use_cache: bool = True,
    time_limit: float = TIME_LIMIT,
) -> Asked:
    """What the compiler of `target` writes of a `jax.stages.Lowered`; see `compile_lowered`."""
    missing = why_missing(target.kind)
    if missing:
        raise CompileError(missing)
    request = Request(compat.module_bytecode(stage), stage.as_text(), target)
    folder = cache or answers.default_folder()
    key = request.key
    kept = answers.load(folder, key) if use_cache else None
    answer = kept or _compile(request, time_limit)
    if use_cache and kept is None:
        answers.keep(folder, key, answer)
    return Asked(answer, key, kept is not None)


def recall(
    key: str, mesh: MeshShape, machine: Machine, *, cache: Path | None = None
) -> Compiled | None:
    """What a compiler said earlier of a plan for `machine` on `mesh`, read anew; None if not kept.

    Args:
      key: of an earlier `Compiled`, by the compiler for the machine's chips.
      mesh: of the plan.
      machine: for which it was compiled.
      cache: folder of earlier answers; by default the user's.
    """
    answer = answers.load(cache or answers.default_folder(), key)
    if answer is None:
        return None
    target = target_of(machine, mesh, kind_of(machine))
    return replace(read(answer, target, mesh, machine, from_cache=True), key=key)


def read(
    answer: Answer,
    target: Target,
    mesh: MeshShape,
    machine: Machine,
    *,
    from_cache: bool = False,
    loops: Sequence[LoopTrips] = (),
    kernels: Sequence[KernelTime] = (),
) -> Compiled:
    """The record of a compiler's answer."""
    final = replace(read_module(answer.final), loops=tuple(loops), kernels=tuple(kernels))
    found = find(final, mesh, slices=target.slices)
    partitioned: list[HloCollective] = []
    if answer.partitioned:
        module = replace(read_module(answer.partitioned), loops=tuple(loops))
        partitioned = fold_rings(made_once(find(module, mesh, slices=target.slices)))
    schedule = read_schedule(answer.schedule) if answer.schedule else None
    schedule = schedule if schedule is not None and schedule.is_measured else None
    estimate = None
    if target.kind != "cpu":
        estimate = timeline(
            Place(final, final.computations[final.entry]),
            found,
            MachinePrices(machine, mesh),
            clock_hertz=target.clock_hertz,
            schedule=schedule,
        )
    memory = answer.facts["memory"]
    return Compiled(
        kind=target.kind,
        device_kind=answer.facts["device_kind"],
        memory=Memory(
            argument_bytes=memory["argument_size"],
            output_bytes=memory["output_size"],
            alias_bytes=memory["alias_size"],
            temporary_bytes=_temporary_bytes(answer, target),
            code_bytes=memory["generated_code_size"],
            host_bytes=_host_bytes(memory),
        ),
        partitioned=tuple(partitioned),
        final=tuple(fold_rings(found)),
        timeline=estimate,
        basis=_basis(target, schedule) + _of_kernels(final),
        compile_seconds=answer.facts["compile_seconds"],
        from_cache=from_cache,
        memory_report=answer.memory_report,
        transfers=transfers(final),
    )


def _host_bytes(memory: Mapping[str, int]) -> int:
    """Of arguments, results and temporaries in the host's memory."""
    sizes = (memory.get(f"host_{name}_size", 0) for name in ("argument", "output", "temp"))
    return sum(sizes) - memory.get("host_alias_size", 0)


def _temporary_bytes(answer: Answer, target: Target) -> int:
    """Of one block for all that is neither argument nor result, see `Memory`."""
    memory = answer.facts["memory"]
    total = _TOTAL.search(answer.memory_report) if target.kind == "tpu" else None
    if total is None:
        return memory["temp_size"]
    own = memory["output_size"] - memory["alias_size"]
    return max(int(total[1]) - memory["argument_size"] - own, 0)


def _basis(target: Target, schedule: Schedule | None) -> str:
    if target.kind == "tpu":
        return "the compiler's cycles, and the machine's prices of collectives"
    if target.kind == "cpu":
        return "the CPU compiler estimates no time"
    if schedule is not None:
        return "the compiler's own timeline"
    return "the machine's prices in the compiled order; the compiler knows no times for this chip"


def _of_kernels(module: Module) -> str:
    """What the timeline takes from the plan, as the end of a sentence."""
    taken = any(
        seconds_of_written(module, instruction) is not None
        for computation in module.computations.values()
        for instruction in computation.instructions
    )
    return "; of kernels that people wrote, the plan's prices" if taken else ""


# -- the child process ---------------------------------------------------------------------------


def _compile(request: Request, time_limit: float) -> Answer:
    target = request.target
    with tempfile.TemporaryDirectory(prefix="autoshard-compile-") as name:
        folder = Path(name)
        (folder / "module.mlirbc").write_bytes(request.module)
        question = {**target.to_json(), "prints_constants": request.prints_constants}
        (folder / "target.json").write_text(json.dumps(question), encoding="utf-8")
        child = subprocess.Popen(
            [sys.executable, "-m", "autoshard.compiler.child", name],
            env=_environment(target),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # so that what it starts ends with it
        )
        try:
            _, noise = child.communicate(timeout=time_limit)
        except subprocess.TimeoutExpired as error:
            raise CompileError(
                f"the {target.kind.upper()} compiler did not finish within {time_limit:g} s for "
                f"{counted(len(target.devices), 'device')}; give it longer, or compile fewer layers"
            ) from error
        finally:
            _end(child)
        if child.returncode != 0:
            raise CompileError(_refusal(target, child.returncode, noise))
        return answers.read_answer(folder)


def _end(child: subprocess.Popen[str]) -> None:
    """End a compile and all that it has started, if it still runs."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def _environment(target: Target) -> Mapping[str, str]:
    """The child's environment: no device and no network is asked for, and little is printed."""
    environment = dict(os.environ)
    environment.update(
        JAX_PLATFORMS="cpu",
        JAX_ENABLE_COMPILATION_CACHE="0",
        TF_CPP_MIN_LOG_LEVEL="3",
        TPU_SKIP_MDS_QUERY="1",
        TPU_MIN_LOG_LEVEL="3",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        XLA_FLAGS=" ".join(target.flags),
    )
    if target.kind == "cpu":
        count = len(target.devices)
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    return environment


def _refusal(target: Target, code: int, noise: str) -> str:
    """The compiler's own words, as far as there are any."""
    lines = [line.strip() for line in noise.strip().splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.partition(":")[0]]
    said = (errors or lines or ["it said nothing"])[-1]
    how = f"was ended by signal {-code}" if code < 0 else "refused the program"
    return f"the {target.kind.upper()} compiler {how}: {said[:2000]}"
