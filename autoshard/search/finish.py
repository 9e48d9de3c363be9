"""From the decisions of a search to its plans: priced anew, beside the schemes, with the proof."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoshard.plan.consistency import InconsistentPlanError
from autoshard.plan.decisions import Decisions
from autoshard.plan.evaluate import evaluate
from autoshard.plan.plan import Baseline, Plan, Proof
from autoshard.search.all_shapes import Explored
from autoshard.search.alternatives import Priced, alternatives
from autoshard.search.assemble import assemble
from autoshard.search.memory_loop import fits_in_its_order
from autoshard.search.one_shape import MeshSearcher, coarsest_form
from autoshard.search.schemes_priced import baseline_rows


def finish(
    searcher: MeshSearcher,
    found: Explored,
    baselines: bool = False,
    options: Mapping[str, Any] | None = None,
    free_mesh: bool = True,
    count: int = 1,
) -> list[Plan]:
    """The plans of a search: priced independently, beside the well-known schemes, with a proof."""
    program, machine = searcher.program, searcher.machine
    shape, decisions, table = found.shape, found.decisions, found.table
    demands = searcher.demands
    assert demands is not None
    prices = searcher.prices(shape.sizes)
    evaluation = evaluate(prices, decisions, shape.names)
    penalty = demands.penalty(evaluation, decisions, shape)
    rows: list[tuple[Baseline, Decisions | None]] = []
    if baselines:
        rows = baseline_rows(searcher, shape)
        for _, other in rows:
            if other is None:
                continue
            priced = evaluate(prices, other, shape.names)
            dues = demands.penalty(priced, other, shape)
            seconds = priced.estimate.step_seconds + dues
            better = seconds < evaluation.estimate.step_seconds + penalty
            if better and fits_in_its_order(prices, other, searcher.limit):
                decisions, evaluation, penalty = other, priced, dues
    schemes = [
        (shape, other, prices, evaluate(prices, other, shape.names))
        for _, other in rows
        if other is not None and count > 1
    ]
    if free_mesh:
        merged = coarsest_form(program, machine, prices, decisions, shape, evaluation)
        if demands.allows(merged[3], merged[0], merged[1]):
            decisions, shape, prices, evaluation = merged
    if not demands.allows(evaluation, decisions, shape):
        broken = [b for b in demands.bounds if demands.broken(b, evaluation, decisions, shape)]
        hard = "; ".join(str(bound) for bound in broken if bound.requirement.hard)
        raise InconsistentPlanError(f"the plan does not keep what must hold: {hard}")
    objective = evaluation.estimate.step_seconds + penalty
    bound = float(min([objective, *(bound for _, bound, _ in table)]))
    left = (objective - bound) / objective if objective > 0 else 0.0
    status = "optimal" if left <= 1e-8 else "feasible"
    proof = Proof(
        status=status,
        objective=objective,
        bound=bound,
        gap=max(left, 0.0),
        seconds=time.monotonic() - searcher.started,
        limit_hit=None if status == "optimal" else found.limit_hit or "time",
        meshes=tuple(
            (name, float(low), None if up is None else float(up)) for name, low, up in table
        ),
    )
    if not searcher.join_sums:
        options = {**(options or {}), "join_sums": False}
    best = (shape, decisions, prices, evaluation)
    others: list[Priced] = []
    if count > 1:
        others = alternatives(searcher, best, schemes, count=count - 1, free_mesh=free_mesh)
    plans = []
    for number, (mesh, chosen, priced, paid) in enumerate((best, *others)):
        seconds = paid.estimate.step_seconds + demands.penalty(paid, chosen, mesh)
        gap = max(seconds - bound, 0.0) / seconds if seconds > 0 else 0.0
        behind = replace(proof, status="feasible", objective=seconds, gap=gap)
        plans.append(
            assemble(
                priced,
                chosen,
                mesh,
                paid,
                proof=behind if number else proof,
                memory_limit=searcher.limit,
                baselines=tuple(baseline for baseline, _ in rows),
                options=options,
                requirements=demands.verdicts(paid, chosen, mesh),
            )
        )
    return plans
