"""The price of a run's own configuration, and of our own plan of the same program and machine.

The step is traced under the rules of its mesh, so that shardings of its arguments, results and
activations are requirements; the solver completes the rest at its best, and the plan is priced as
any other, in the order in which the compiler runs it. Nothing is searched over meshes, microbatches
or remat. Our own plan has all of the mesh free, and the memory that the run's own took.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from autoshard.models.annotate import RulesError, active, shardings
from autoshard.models.decoder import LOGICAL_AXES, decoder
from autoshard.models.training import Step
from autoshard.plan.fits import needed_bytes
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program, trace
from autoshard.search.all_shapes import InfeasibleError, NoPlanError, explore
from autoshard.search.finish import finish
from autoshard.search.options import SearchOptions, WarmStart
from autoshard.search.prepare import MeshError, prepare
from autoshard.search.search import search
from autoshard.study.measured.question import (
    Question,
    Remat,
    UnreachableError,
    describe,
    measured_seconds,
    question,
)
from autoshard.study.measured.table import Run

ANY = 2.0**50
"""A limit of memory that no plan reaches, bytes."""
GAP = 0.02
"""A run's own configuration is completed to within this share of the best completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A run, measured and predicted; None stands for what is not known.

    Attributes:
      id, model, chip, chips: of the run.
      parallelism: its mesh.
      measured_seconds, predicted_seconds: of its step.
      measured_gib, predicted_gib: of one device.
      ours_seconds: of our own plan.
      ours_mesh: of our own plan.
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
    ours_seconds: float | None = None
    ours_mesh: str = ""
    status: str = ""


def answer(run: Run, *, ours: float = 0.0, time_limit: float = 60.0) -> Answer:
    """What is predicted of a run; whatever stands against it is its status.

    Args:
      run: of a table.
      ours: seconds for the search of our own plan; 0 for none.
      time_limit: seconds for completing the run's own configuration.
    """
    told = Answer(
        id=run.id, model=run.model, chip=run.chip, chips=run.chips, measured_gib=run.memory_gib
    )
    try:
        asked = question(run)
    except UnreachableError as error:
        return replace(told, measured_seconds=run.step_seconds, status=f"unreachable: {error}")
    seconds, how = measured_seconds(run, asked)
    notes = [*asked.notes, *([how] if how else [])]
    told = replace(told, parallelism=describe(asked), measured_seconds=seconds)
    try:
        plan, chosen = _own(asked, time_limit)
    except (MeshError, InfeasibleError, NoPlanError, RulesError, ValueError) as error:
        return replace(told, status=f"unreachable: {_line(error)}")
    if len(asked.remat) > 1:
        notes.append(f"remat taken: {chosen if isinstance(chosen, str) else ' '.join(chosen)}")
    needed = max(needed_bytes(plan.estimate) - asked.offloaded, 0.0)
    if needed > asked.machine.chip.usable_bytes:
        notes.append("more than the chip's memory")
    told = replace(
        told,
        predicted_seconds=plan.estimate.expected_seconds,
        predicted_gib=needed / 2**30,
        status="; ".join(["priced", *notes]),
    )
    if not ours:
        return told
    step = _free(asked, chosen)
    free = trace(step.fn, *step.args, **step.options)
    limit = max(needed, asked.machine.chip.usable_bytes) + asked.offloaded
    try:
        best = search(free, asked.machine, memory_limit=limit, time_limit=ours, baselines=False)
    except (InfeasibleError, NoPlanError, MeshError) as error:
        return replace(told, status=f"{told.status}; our own plan: {_line(error)}")
    mesh = str(best.mesh)
    return replace(told, ours_seconds=best.estimate.expected_seconds, ours_mesh=mesh)


def _own(asked: Question, time_limit: float) -> tuple[Plan, Remat]:
    """The plan of the first choice of remat that fits, or of the last."""
    fitting = asked.machine.chip.usable_bytes + asked.offloaded
    for remat in asked.remat:
        program = _program(asked, remat)
        for limit in (fitting, ANY) if remat == asked.remat[-1] else (fitting,):
            try:
                return _completed(program, asked, limit, time_limit), remat
            except (InfeasibleError, NoPlanError):
                if limit == ANY:
                    raise
    raise UnreachableError("no choice of remat has a plan")


def _completed(program: Program, asked: Question, limit: float, time_limit: float) -> Plan:
    """The plan under the rules whose peak in the solver's order is within a limit.

    In the compiler's order it may take more, as the run did.
    """
    words = SearchOptions(
        mesh=dict(asked.rules.mesh),
        memory_limit=limit,
        time_limit=time_limit,
        gap=GAP,
        baselines=False,
    )
    searcher, shapes = prepare(program, asked.machine, words, WarmStart(seeks_limit=False))
    found = explore(searcher, shapes)
    try:
        return finish(searcher, found, words)[0]
    except InfeasibleError as error:
        if error.plan is None:
            raise
        return error.plan


def _free(asked: Question, remat: Remat) -> Step:
    return decoder(
        asked.decoder,
        asked.batch,
        asked.sequence,
        remat=remat,
        attention=asked.attention,  # type: ignore[arg-type]
        products=asked.products,
        microbatches=asked.microbatches if asked.microbatches > 1 else None,
    )


def _program(asked: Question, remat: Remat) -> Program:
    """The step under the rules of its mesh."""
    step, rules = _free(asked, remat), asked.rules
    mesh = rules.make_mesh()

    def ruled(*args: Any) -> Any:
        with active(rules, mesh):
            return step.fn(*args)

    given = shardings(step.args, LOGICAL_AXES, rules, mesh)
    # Of a step of its own: JAX keeps what it traced without rules.
    results = jax.eval_shape(_free(asked, remat).fn, *step.args)
    returned = shardings(results, LOGICAL_AXES, rules, mesh)
    jitted = jax.jit(ruled, in_shardings=given, out_shardings=returned)
    return trace(jitted, *step.args, **step.options)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
