"""The price of a run's own configuration, and of our own plan of the same program and machine.

The step is traced under the rules of its mesh, so that shardings of its arguments, results and
activations are requirements; the solver completes the rest at its best, and the plan is priced as
any other, in the order in which the compiler runs it. Nothing is searched over meshes, microbatches
or remat. Our own plan has all of the mesh free, and the memory that the run's own took; it is held
to the run's configuration as the same compiler would run it, not as another framework does. Of a
pipeline our own plan has the whole machine as one mesh, and no pipeline. What it chooses is in
`autoshard.study.measured.ours`.

A pipeline is priced by its stages (`autoshard.study.measured.stages`). Runs that differ in nothing
that is asked have one price, which is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoshard.machine.machine import Machine
from autoshard.models.annotate import RulesError
from autoshard.models.training import Step
from autoshard.plan.fits import needed_bytes
from autoshard.plan.plan import Plan
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.assemble import prices_of
from autoshard.search.prepare import MeshError
from autoshard.study.measured.compiled import compiled
from autoshard.study.measured.completed import (
    ANY,
    completed,
    ruled_program,
    ruled_step,
)
from autoshard.study.measured.eager import eager_bytes, eager_seconds
from autoshard.study.measured.our_pipeline import our_pipeline
from autoshard.study.measured.ours import our_plan
from autoshard.study.measured.question import (
    Question,
    Remat,
    UnreachableError,
    describe,
    measured_seconds,
    question,
)
from autoshard.study.measured.stages import piped
from autoshard.study.measured.table import Run
from autoshard.study.measured.unrolled import joined_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A run, measured and predicted; None stands for what is not known.

    Attributes:
      id, model, chip, chips: of the run.
      parallelism: its mesh.
      measured_seconds, predicted_seconds: of its step.
      measured_gib, predicted_gib: of one device.
      own_seconds: of the run's own configuration, where `ours_seconds` is held to it.
      ours_seconds: of our own plan.
      ours_mesh: of our own plan.
      ours_choices: what it does otherwise beside its mesh: microbatches, stacks on the host.
      own_compiled, ours_compiled: seconds of a step of these two, by the compiler of the machine.
      own_compiled_gib, ours_compiled_gib: of one device, likewise.
      status: `priced`, or why it is not; and what was taken to be so, after semicolons.
    """

    id: str
    model: str
    chip: str
    chips: int
    parallelism: str = ""
    measured_seconds: float | None = None
    predicted_seconds: float | None = None
    measured_gib: float | None = None
    predicted_gib: float | None = None
    own_seconds: float | None = None
    ours_seconds: float | None = None
    ours_mesh: str = ""
    ours_choices: str = ""
    own_compiled: float | None = None
    ours_compiled: float | None = None
    own_compiled_gib: float | None = None
    ours_compiled_gib: float | None = None
    status: str = ""


def answer(
    run: Run, *, ours: float = 0.0, compiles: float = 0.0, time_limit: float = 60.0
) -> Answer:
    """What is predicted of a run; whatever stands against it is its status.

    Args:
      run: of a table.
      ours: seconds for the search of our own plan; 0 for none.
      compiles: seconds for compiling each of the run's own configuration and our plan; 0 for none.
      time_limit: seconds for completing the run's own configuration.
    """
    told = Answer(
        id=run.id, model=run.model, chip=run.chip, chips=run.chips, measured_gib=run.memory_gib
    )
    try:
        asked = question(run)
    except UnreachableError as error:
        return replace(told, measured_seconds=run.step_seconds, status=f"unreachable: {error}")
    if compiles and asked.attention == "flash" and asked.machine.chip.compiler.name == "xla:gpu":
        # The kernel by which runs are priced is one of TPUs, which no compiler of GPUs takes.
        notes = (*asked.notes, "attention by cuDNN")
        asked = replace(asked, attention="cudnn", notes=notes)
    seconds, how = measured_seconds(run, asked)
    notes = [*asked.notes, *([how] if how else [])]
    told = replace(told, parallelism=describe(asked), measured_seconds=seconds)
    try:
        price = _own(asked, time_limit)
    except (MeshError, InfeasibleError, NoPlanError, RulesError, ValueError) as error:
        return replace(told, status=f"unreachable: {_line(error)}")
    chosen = price.remat
    if len(asked.remat) > 1:
        notes.append(f"remat taken: {chosen if isinstance(chosen, str) else ' '.join(chosen)}")
    if price.needed_bytes > asked.machine.chip.usable_bytes:
        notes.append("more than the chip's memory")
    told = replace(
        told,
        predicted_seconds=price.seconds,
        predicted_gib=price.needed_bytes / 2**30,
        status="; ".join(["priced", *notes]),
    )
    return _beaten(told, asked, price, ours, compiles) if ours else told


def _beaten(told: Answer, asked: Question, price: _Price, ours: float, compiles: float) -> Answer:
    """The answer with our own plan of the same program and machine."""
    machine = asked.machine if asked.pipeline is None else asked.pipeline.machine
    limit = max(price.needed_bytes, machine.chip.usable_bytes)
    told = replace(told, own_seconds=price.planned_seconds)
    own = None if price.plan is None else (price.plan, ruled_step(asked, price.remat))
    piped = None
    if asked.pipeline is not None:
        ours = 0.5 * ours
        piped = our_pipeline(asked, limit=limit, time_limit=ours)
    found = our_plan(asked, machine, price.remat, price.plan, memory_limit=limit, time_limit=ours)
    if piped is not None and (isinstance(found, str) or piped.seconds < found.seconds):
        told = replace(told, ours_seconds=piped.seconds, ours_mesh=piped.mesh)
        told = replace(told, ours_choices=piped.choices())
        return _uncompiled(told, "our own plan is a pipeline") if compiles else told
    if isinstance(found, str):
        return replace(told, status=f"{told.status}; our own plan: {found}")
    told = replace(
        told,
        ours_seconds=found.seconds,
        ours_mesh=str(found.plan.mesh),
        ours_choices=found.choices(asked),
    )
    if not compiles:
        return told
    if own is None:
        return _uncompiled(told, "its configuration is a pipeline")
    return _judged(told, own, (found.plan, found.step), machine, compiles)


def _uncompiled(told: Answer, why: str) -> Answer:
    return replace(told, status=f"{told.status}; not compiled: {why}")


def _judged(
    told: Answer,
    own: tuple[Plan, Step],
    ours: tuple[Plan, Step],
    machine: Machine,
    time_limit: float,
) -> Answer:
    """The answer with what the compiler says of the run's own configuration and of our plan."""
    of = {}
    for name, (plan, step) in (("own", own), ("ours", ours)):
        found = compiled(plan, step, machine, time_limit=time_limit)
        if isinstance(found, str):
            return replace(told, status=f"{told.status}; {name} is not compiled: {found}")
        of |= {
            f"{name}_compiled": found.seconds,
            f"{name}_compiled_gib": found.peak_bytes / 2**30,
        }
    return replace(told, **of)


_PRICES: dict[str, _Price | ValueError] = {}
"""Of questions that were priced, by all that they say but their notes and limit of time."""


@dataclass(frozen=True, slots=True)
class _Price:
    """Seconds of a step and bytes of a device, of the choice of remat that was taken.

    `planned_seconds` are those of the plan as it is, see `eager.eager_seconds` for others; a
    pipeline has no plan.
    """

    seconds: float
    planned_seconds: float
    needed_bytes: float
    remat: Remat
    plan: Plan | None = None


def _own(asked: Question, time_limit: float) -> _Price:
    """The price of a question; remembered."""
    key = f"{replace(asked, notes=())} {time_limit}"
    if key not in _PRICES:
        try:
            _PRICES[key] = _priced(asked, time_limit)
        except ValueError as error:
            _PRICES[key] = error
    found = _PRICES[key]
    if isinstance(found, ValueError):
        raise found
    return found


def _priced(asked: Question, time_limit: float) -> _Price:
    """The price of the first choice of remat that fits, or of the last."""
    if asked.pipeline is not None:
        found = piped(asked, time_limit)
        return _Price(found.seconds, found.seconds, found.needed_bytes, found.remat)
    fitting = asked.machine.chip.usable_bytes
    for remat in asked.remat:
        program = ruled_program(asked, remat)
        for limit in (fitting, ANY) if remat == asked.remat[-1] else (fitting,):
            try:
                plan = completed(program, asked, limit, time_limit)
                seconds = planned = plan.estimate.expected_seconds
                needed = needed_bytes(plan.estimate)
                if asked.unrolled:
                    prices = prices_of(plan, program, asked.machine)
                    seconds += joined_seconds(asked, prices.topology)
                if asked.eager:
                    prices = prices_of(plan, program, asked.machine)
                    seconds = eager_seconds(plan, prices, asked)
                    needed = eager_bytes(plan, prices, asked, remat)
                return _Price(seconds, planned, needed, remat, plan)
            except (InfeasibleError, NoPlanError):
                if limit == ANY:
                    raise
    raise UnreachableError(
        f"no choice of remat has a plan on {asked.machine.name}; take more chips or a smaller batch"
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
