"""What compiled plans of a program teach about its prices: see `autoshard.cost.corrections`.

Every compiled plan says how long each part of the program takes in it, and how long the step. With
`c_ip` the compiled and `p_ip` the predicted roofline seconds of part p in plan i:

    factor_p  =  (sum_i c_ip / C_i + s g share_p) / (sum_i p_ip / C_i + s share_p),
    g = sum_ip c_ip / sum_ip p_ip,   share_p = sum_i p_ip / C_i,   C_i = sum_p c_ip

so that each plan counts alike, and a part whose time the compiler books elsewhere (it fused the
part with another) keeps a little of its own, `s` = `SMOOTHING`. Time of no predicted part is spread
over all. The shares of collectives that add to the step are then fitted to what is left of the
steps, by least squares of relative errors with the present shares as a prior.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from autoshard.compiler.hlo.timeline import Timeline
from autoshard.cost.corrections import NONE, Corrections, Part, part_of, scope_key
from autoshard.cost.step_prices import StepPrices
from autoshard.plan.evaluate import compute_seconds
from autoshard.plan.plan import Plan

SMOOTHING = 0.05
"""Weight of a part's own prediction beside what the compiler books on it."""
PRIOR = 0.1
"""A share that is off by one counts as a step that is off by this."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A plan, the uncorrected prices on its mesh, and the compiler's timeline of it."""

    plan: Plan
    prices: StepPrices
    timeline: Timeline


def fit(observations: Sequence[Observation]) -> Corrections:
    """The corrections under which the predictions agree best with the timelines.

    Args:
      observations: of one program on one machine; their prices must carry no corrections. Without
        any, nothing is corrected.
    """
    if not observations:
        return NONE
    if any(one.prices.corrections is not NONE for one in observations):
        raise ValueError("the prices of an observation carry corrections; fit to the plain ones")
    compiled: dict[Part, float] = defaultdict(float)
    predicted: dict[Part, float] = defaultdict(float)
    roofline = [predicted_parts(one.prices, one.plan) for one in observations]
    for one, parts in zip(observations, roofline, strict=True):
        total = one.timeline.compute_seconds or 1.0
        for part, seconds in parts.items():
            predicted[part] += seconds / total
        for part, seconds in compiled_parts(one.timeline, parts).items():
            compiled[part] += seconds / total
    whole = sum(compiled.values()) / sum(predicted.values())
    factors = {
        part: (compiled.get(part, 0.0) + SMOOTHING * whole * share) / ((1 + SMOOTHING) * share)
        for part, share in predicted.items()
        if share > 0
    }
    compute = [
        sum(factors.get(part, whole) * seconds for part, seconds in parts.items())
        for parts in roofline
    ]
    hidden, waited = _shares(observations, compute)
    return Corrections(factors, whole, hidden, waited)


def predicted_parts(prices: StepPrices, plan: Plan) -> dict[Part, float]:
    """Roofline seconds of the plan by part."""
    parts: dict[Part, float] = defaultdict(float)
    for op, _, seconds in compute_seconds(prices, plan.decisions):
        parts[part_of(op)] += seconds
    return dict(parts)


def compiled_parts(timeline: Timeline, predicted: dict[Part, float]) -> dict[Part, float]:
    """Compute seconds of a timeline by part; those of no predicted part are spread over all."""
    parts: dict[Part, float] = defaultdict(float)
    strange = 0.0
    for (scope, is_product), seconds in timeline.parts.items():
        part: Part = scope_key(scope), "matrix" if is_product else "vector"
        if predicted.get(part, 0.0) > 0:
            parts[part] += seconds
        else:
            strange += seconds
    placed = sum(parts.values())
    if not placed:
        total = sum(predicted.values())
        return {part: strange * seconds / total for part, seconds in predicted.items()}
    return {part: seconds * (1 + strange / placed) for part, seconds in parts.items()}


def _shares(
    observations: Sequence[Observation], compute: Sequence[float]
) -> tuple[float | None, float]:
    """What of a second of collectives adds to the step: where it can be hidden, and elsewhere.

    `compute` are the corrected compute seconds of every observation.
    """
    overlap = observations[0].prices.machine.overlap
    if overlap == 0:  # the moves do not say which of them can be hidden
        return None, 1.0
    rows, wanted = [], []
    for one, busy in zip(observations, compute, strict=True):
        seconds = one.timeline.seconds
        hidden = waited = 0.0
        for move in one.plan.moves:
            if move.exposed_seconds < move.seconds * (1 - 1e-9):
                hidden += move.seconds
            else:
                waited += move.seconds
        rows.append([hidden / seconds, waited / seconds])
        wanted.append((seconds - busy) / seconds)
    matrix, prior = np.array(rows), np.array([1 - overlap, 1.0])
    ridge = PRIOR * np.eye(2)
    found = lsq_linear(
        np.vstack([matrix, ridge]),
        np.concatenate([wanted, ridge @ prior]),
        bounds=(0.0, np.inf),
    )
    hidden, waited = map(float, found.x)
    return hidden, waited
