"""A run's configuration completed: its step under the rules of its mesh, and the best such plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from autoshard.models.annotate import active, shardings
from autoshard.models.decoder import LOGICAL_AXES, decoder
from autoshard.models.training import Step
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program, trace
from autoshard.search.all_shapes import InfeasibleError, explore
from autoshard.search.finish import finish
from autoshard.search.options import SearchOptions, WarmStart
from autoshard.search.prepare import prepare
from autoshard.study.measured.question import Question, Remat

ANY = 2.0**50
"""A limit of memory that no plan reaches, bytes."""
GAP = 0.001
"""A run's own configuration is completed to within this share of the best completion: less than
runs on one slice and on several differ by, and no slower to find than within 2 %."""

REMEMBERED = 8
_TRACED: dict[str, Program] = {}
"""The last programs by what they are made of: runs often differ in their machine alone."""


def completed(program: Program, asked: Question, limit: float, time_limit: float) -> Plan:
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


def free_step(asked: Question, remat: Remat) -> Step:
    """The step of a question, with nothing said of where anything lies."""
    return decoder(
        asked.decoder,
        asked.batch,
        asked.sequence,
        remat=remat,
        offload=asked.offloaded,
        attention=asked.attention,  # type: ignore[arg-type]
        products=asked.products,
        block=asked.block,
        microbatches=asked.microbatches if asked.microbatches > 1 else None,
    )


def ruled_program(asked: Question, remat: Remat) -> Program:
    """The step under the rules of its mesh; the last few are remembered."""
    key = str((asked.decoder, asked.batch, asked.sequence, asked.microbatches, asked.attention,
               asked.block, asked.products, asked.rules, asked.offloaded, remat))  # fmt: skip
    found = _TRACED.pop(key, None) or _traced(asked, remat)
    if len(_TRACED) == REMEMBERED:
        del _TRACED[next(iter(_TRACED))]
    _TRACED[key] = found
    return found


def _traced(asked: Question, remat: Remat) -> Program:
    step = ruled_step(asked, remat)
    return trace(step.fn, *step.args, **step.options)


def ruled_step(asked: Question, remat: Remat) -> Step:
    """The step of a question under the rules of its mesh."""
    step, rules = free_step(asked, remat), asked.rules
    mesh = rules.make_mesh()

    def ruled(*args: Any) -> Any:
        with active(rules, mesh):
            return step.fn(*args)

    given = shardings(step.args, LOGICAL_AXES, rules, mesh)
    loss = jax.ShapeDtypeStruct((), jnp.float32)  # see `training.adamw_step`
    returned = shardings((loss, *step.args[:2]), LOGICAL_AXES, rules, mesh)
    jitted = jax.jit(ruled, in_shardings=given, out_shardings=returned)
    return step._replace(fn=jitted)
