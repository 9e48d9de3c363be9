"""What bounds a point from below: the prices of its steps at its own configuration.

A step with as many layers of each kind as there are takes

    seconds = base + sum over kinds of (layers - 1) x (one layer more of it),

`base` with one layer of each. Layers are unrolled, so this is exact but for what a compiler fuses
over their edges. Collectives are those of `autoshard.study.served.collectives`; they run alone. The
three bounds:

    first token       a prefill of all prompts where they come together, else of one alone
    each further      a decode step at the mean length of the cache
    tokens a second   `batch x output` in the time of `output - 1` decode steps and of all prefills

What an engine adds is on top of it: its scheduler and sampling on the host, gaps between kernels
that are not in one graph, chunks of prompts between decode steps, waiting for other requests. The
bound holds where predicted <= measured.

Our own plan is of the same decode step with at most `FEW` layers of each kind, with mesh and
layouts free; it is held to the point's own configuration with as many layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax

from autoshard.models.annotate import RulesError, active, shardings
from autoshard.models.decoder_sizes import sizes_of
from autoshard.models.engine import AXES, engine_step
from autoshard.models.engine.step import Mode
from autoshard.models.training import Step
from autoshard.plan.plan import Plan
from autoshard.program.trace import Program, trace
from autoshard.search.all_shapes import InfeasibleError, NoPlanError
from autoshard.search.prepare import MeshError
from autoshard.search.search import search
from autoshard.study.measured.remat import UnreachableError
from autoshard.study.served.collectives import move_seconds
from autoshard.study.served.question import Question, question
from autoshard.study.served.table import Point

LIMIT = 20.0
"""Seconds for the completion of one step."""
ANY = 2.0**50
"""A limit of memory that no plan reaches, bytes: of few layers it says nothing."""
FEW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A point, and what bounds it; None stands for what was not published.

    Attributes:
      id, model, chip, chips: of the point.
      mesh: its mesh.
      ttft_ms, tpot_ms, tokens_per_s: predicted, of those that were published.
      memory_gb: 1e9 bytes of weights and cache on a chip.
      ours: our own plan's decode step as a share of the point's own, of a few layers.
      ours_mesh: of our own plan.
      status: `priced`, or why it is not.
    """

    id: str
    model: str
    chip: str
    chips: int
    mesh: str = ""
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tokens_per_s: float | None = None
    memory_gb: float | None = None
    ours: float | None = None
    ours_mesh: str = ""
    status: str = ""


def answer(point: Point, *, ours: float = 0.0) -> Bound:
    """What bounds a point; whatever stands against it is its status.

    Args:
      point: of a table.
      ours: seconds for the search of our own plan of its decode step; 0 for none. Points of one
        chip have none.
    """
    told = Bound(id=point.id, model=point.model, chip=point.chip, chips=point.chips)
    try:
        asked = question(point)
        told = _priced(replace(told, mesh=_mesh(asked)), point, asked)
        if not ours or point.chips == 1 or point.output == 1:
            return told
        share, mesh = ours_ratio(point, ours)
        return replace(told, ours=share, ours_mesh=mesh)
    except UnreachableError as error:
        return replace(told, status=f"unreachable: {error}")
    except (MeshError, InfeasibleError, NoPlanError, RulesError, ValueError) as error:
        return replace(told, status=f"unreachable: {' '.join(str(error).split())[:300]}")


def _mesh(asked: Question) -> str:
    return ",".join(f"{axis}={size}" for axis, size in asked.rules.mesh.items())


def _priced(told: Bound, point: Point, asked: Question) -> Bound:
    ttft = tpot = rate = None
    together = point.batch if point.arrival == "together" else 1
    if point.ttft_ms or point.tokens_per_s:
        ttft = step_seconds(asked, "prefill", together, point.input)
    if point.tpot_ms or point.tokens_per_s:
        tpot = step_seconds(asked, "decode", point.batch, mean_length(point))
    if point.tokens_per_s and ttft is not None and tpot is not None:
        prefills = ttft * point.batch / together
        rate = point.batch * point.output / ((point.output - 1) * tpot + prefills)
    return replace(
        told,
        ttft_ms=None if ttft is None or not point.ttft_ms else 1e3 * ttft,
        tpot_ms=None if tpot is None or not point.tpot_ms else 1e3 * tpot,
        tokens_per_s=rate,
        memory_gb=held_bytes(asked, point) / 1e9,
        status="priced",
    )


def mean_length(point: Point) -> int:
    """Places of the cache that a decode step reads, in the mean of a request.

    >>> mean_length(Point(id="a", model="m", chip="c", chips=1, batch=1, input=128, output=128))
    192
    """
    return point.input + point.output // 2


def held_bytes(asked: Question, point: Point) -> float:
    """Bytes of weights and of a full cache on one chip."""
    length = point.input + point.output
    step = engine_step(
        asked.decoder, "decode", batch=point.batch, length=length, precision=asked.precision
    )
    given = shardings(step.args, AXES, asked.rules)
    leaves = zip(jax.tree.leaves(step.args), jax.tree.leaves(given), strict=True)
    return sum(
        math.prod(where.shard_shape(leaf.shape)) * _bits(leaf.dtype) / 8.0 for leaf, where in leaves
    )


def _bits(dtype: Any) -> int:
    return 4 if "float4" in str(dtype) else 8 * dtype.itemsize


_SECONDS: dict[str, float] = {}
"""Of steps that were priced, by all that they are made of."""


def step_seconds(asked: Question, mode: Mode, batch: int, length: int) -> float:
    """Seconds of a step with all layers; remembered."""
    key = f"{asked} {mode} {batch} {length}"
    if key not in _SECONDS:
        counts = asked.decoder.kinds
        ones = dict.fromkeys(counts, 1)
        base = _seconds(asked, mode, batch, length, ones)
        _SECONDS[key] = base + sum(
            (count - 1) * (_seconds(asked, mode, batch, length, {**ones, kind: 2}) - base)
            for kind, count in counts.items()
            if count > 1
        )
    return _SECONDS[key]


def _seconds(asked: Question, mode: Mode, batch: int, length: int, kinds: dict[str, int]) -> float:
    step = _step(asked, mode, batch, length, kinds)
    return planned_seconds(_plan(ruled(step, asked), asked, LIMIT, dict(asked.rules.mesh)), asked)


def _step(asked: Question, mode: Mode, batch: int, length: int, kinds: dict[str, int]) -> Step:
    return engine_step(
        asked.decoder, mode, batch=batch, length=length, precision=asked.precision, kinds=kinds
    )


def _plan(
    program: Program, asked: Question, time_limit: float, mesh: dict[str, int] | None
) -> Plan:
    return search(
        program,
        asked.machine,
        mesh=mesh,
        memory_limit=ANY,
        time_limit=time_limit,
        baselines=False,
    )


def ruled(step: Step, asked: Question) -> Program:
    """A step under the rules of its mesh."""
    rules = asked.rules
    mesh = rules.make_mesh()

    def run(*args: Any) -> Any:
        with active(rules, mesh):
            return step.fn(*args)

    given = shardings(step.args, AXES, rules, mesh)
    return trace(jax.jit(run, in_shardings=given), *step.args, **step.options)


def planned_seconds(plan: Plan, asked: Question) -> float:
    """Seconds of a plan as an engine runs it: op after op, with its own collectives."""
    mesh = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    sums = sum(move_seconds(move, mesh, asked.machine) for move in plan.moves)
    return plan.estimate.compute_seconds + sums


def ours_ratio(point: Point, time_limit: float) -> tuple[float, str]:
    """What our own plan of a decode step takes, as a share of the point's own, and its mesh.

    Raises:
      UnreachableError: the point cannot be expressed.
    """
    asked = question(point)
    few = {kind: min(count, FEW) for kind, count in asked.decoder.kinds.items()}
    length = mean_length(point)
    own = _seconds(asked, "decode", point.batch, length, few)
    free = replace(asked, decoder=sizes_of(point.model))
    step = _step(free, "decode", point.batch, length, few)
    program = trace(step.fn, *step.args, **step.options)
    plan = _plan(program, asked, time_limit, None)
    ours = planned_seconds(plan, asked)
    return (ours / own, str(plan.mesh)) if ours < own else (1.0, _mesh(asked))
