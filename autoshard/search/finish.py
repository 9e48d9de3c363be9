"""Turns the decisions of a search into plans: priced again, with the schemes and the proof."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from autoshard.interrupts import acknowledge
from autoshard.machine.names import two_meanings
from autoshard.plan.consistency import InconsistentPlanError
from autoshard.plan.evaluate import Evaluation, evaluate
from autoshard.plan.fits import fits, fits_host, needed_bytes, refusal
from autoshard.plan.made_copies import copies_note
from autoshard.plan.plan import Baseline, Plan, Proof
from autoshard.problem.requirements.demands import Demands
from autoshard.program.notes import notes_of
from autoshard.search.all_shapes import Explored, InfeasibleError
from autoshard.search.alternatives import Priced, alternatives
from autoshard.search.assemble import assemble, forecasted
from autoshard.search.flags import flags_notes
from autoshard.search.mesh_axes import coarsest_form
from autoshard.search.one_shape import MeshSearcher
from autoshard.search.options import SearchOptions
from autoshard.search.scheduled.near import WORTH, fastest_scheduled
from autoshard.search.schemes_priced import baseline_rows
from autoshard.search.schemes_solved import SCHEME_SECONDS
from autoshard.solve.limit_hit import LimitHit
from autoshard.units import counted, format_bytes


def finish(searcher: MeshSearcher, found: Explored, asked: SearchOptions) -> list[Plan]:
    """Return the plans of a search, priced independently, with the schemes and a proof.

    An interrupt leaves out what is not known by then, and not the plan that was found.

    Raises:
      InfeasibleError: even the found plan that needs the least memory does not fit. The error
        carries that plan.
    """
    searcher.tell(found.shape.sizes, "finish")
    try:
        return _finished(searcher, found, asked)
    except KeyboardInterrupt as interrupt:
        acknowledge(interrupt)
        return _finished(searcher, replace(found, limit_hit=LimitHit.INTERRUPTED), asked)


def _finished(searcher: MeshSearcher, found: Explored, asked: SearchOptions) -> list[Plan]:
    demands = searcher.demands
    assert demands is not None
    free_mesh, table = asked.mesh is None, found.table
    waits = found.limit_hit is not LimitHit.INTERRUPTED
    if asked.by_schedule and free_mesh and waits:
        found = fastest_scheduled(searcher, found, demands)
    rows = baseline_rows(searcher, found.shape) if asked.baselines and waits else []
    best, schemes, dearer = _best_of(searcher, found, rows, demands, asked)
    if waits and not fits(best[3].estimate, searcher.limit):
        # A scheme may fit in the order in which the compiler runs it.
        more = baseline_rows(searcher, found.shape, least=SCHEME_SECONDS)
        best, _, dearer = _best_of(searcher, found, more, demands, asked)
    if dearer:
        found = replace(found, limit_hit=LimitHit.COMPILER)
    if free_mesh:
        best = _coarsest(searcher, best, demands)
    shape, decisions, _, evaluation = best
    objective = evaluation.estimate.step_seconds + demands.penalty(evaluation, decisions, shape)
    bound = float(min([objective, *(bound for _, bound, _ in table)]))
    proof = _proof(searcher, found, objective, bound)
    options = asked.options
    if not searcher.join_sums:
        options = {**(options or {}), "join_sums": False}
    if not asked.constraints:
        options = {**(options or {}), "constraints": False}

    def plan(one: Priced, proof: Proof) -> Plan:
        mesh, chosen, priced, paid = one
        copies = copies_note(priced, chosen, paid.estimate.step_seconds)
        return assemble(
            priced,
            chosen,
            mesh,
            paid,
            proof=proof,
            memory_limit=searcher.limit,
            baselines=tuple(baseline for baseline, _ in rows),
            options=options,
            requirements=demands.verdicts(paid, chosen, mesh),
            notes=(
                *_machine_notes(searcher),
                *(flags_notes(one, searcher.limit) if asked.baselines and waits else ()),
                *notes_of(searcher.program),
                *([copies] if copies else []),
                *demands.notes(mesh),
            ),
        )

    first = plan(best, proof)
    if not fits(first.estimate, searcher.limit):
        raise _too_large(searcher, first)
    if not fits_host(first.estimate, searcher.machine.host):
        raise _too_large_for_host(searcher, first)
    _require(demands, best)
    others: list[Priced] = []
    if asked.count > 1 and found.limit_hit is not LimitHit.INTERRUPTED:
        count = asked.count - 1
        others = alternatives(searcher, best, schemes, count=count, free_mesh=free_mesh)
    return [first, *(plan(one, _behind(proof, one, demands, bound)) for one in others)]


def _machine_notes(searcher: MeshSearcher) -> list[str]:
    meanings = two_meanings(searcher.machine.name)
    return [] if meanings is None else [meanings]


class _Best(NamedTuple):
    """The plan of a search, and the well-known schemes that fit.

    `dearer` says that the plan is one of these, and costs more than what the solver has found.
    """

    plan: Priced
    schemes: list[Priced]
    dearer: bool


def _best_of(
    searcher: MeshSearcher,
    found: Explored,
    rows: list[tuple[Baseline, Priced | None]],
    demands: Demands,
    asked: SearchOptions,
) -> _Best:
    """Return the plan found, or a better scheme; if none fits, the one with the least memory."""
    shape, prices = found.shape, searcher.prices(found.shape.sizes)

    plain = evaluate(prices, found.decisions, shape.names)
    own = shape, found.decisions, prices, forecasted(prices, found.decisions, plain)

    def rank(one: Priced) -> tuple[bool, float]:
        _, decisions, _, evaluation = one
        dues = demands.penalty(evaluation, decisions, shape)
        if not fits(evaluation.estimate, searcher.limit):
            return True, needed_bytes(evaluation.estimate)
        if not asked.by_schedule or not fits(own[3].estimate, searcher.limit):
            return False, evaluation.estimate.step_seconds + dues
        worth = 1.0 if one is own else 1.0 / (1.0 - WORTH)
        return False, worth * (evaluation.estimate.expected_seconds + dues)

    schemes = [scheme for _, scheme in rows if scheme is not None]
    best = min([own, *schemes], key=rank)
    paid, least = best[3].estimate.step_seconds, own[3].estimate.step_seconds
    return _Best(best, schemes, fits(own[3].estimate, searcher.limit) and paid > least)


def _coarsest(searcher: MeshSearcher, best: Priced, demands: Demands) -> Priced:
    """Return the plan on the coarsest mesh that can express it.

    If the coarser form breaks a hard requirement, or no longer fits, return the plan unchanged.
    """
    shape, decisions, prices, evaluation = best
    decisions, shape, prices, evaluation = coarsest_form(
        searcher.program, searcher.machine, prices, decisions, shape, evaluation
    )
    merged = shape, decisions, prices, forecasted(prices, decisions, evaluation)
    keeps = demands.allows(merged[3], decisions, shape)
    return merged if keeps and _fits_as_well(searcher, merged[3], best[3]) else best


def _fits_as_well(searcher: MeshSearcher, now: Evaluation, before: Evaluation) -> bool:
    limit = searcher.limit
    return fits(now.estimate, limit) or not fits(before.estimate, limit)


def _proof(searcher: MeshSearcher, found: Explored, objective: float, bound: float) -> Proof:
    left = (objective - bound) / objective if objective > 0 else 0.0
    status = "optimal" if left <= 1e-8 else "feasible"
    return Proof(
        status=status,
        objective=objective,
        bound=bound,
        gap=max(left, 0.0),
        seconds=time.monotonic() - searcher.started,
        limit_hit=None if status == "optimal" else found.limit_hit or LimitHit.TIME,
        meshes=tuple(
            (name, float(low), None if up is None else float(up)) for name, low, up in found.table
        ),
    )


def _behind(proof: Proof, one: Priced, demands: Demands, bound: float) -> Proof:
    """Return the proof of an alternative, with the bound of the whole search space."""
    mesh, chosen, _, paid = one
    seconds = paid.estimate.step_seconds + demands.penalty(paid, chosen, mesh)
    gap = max(seconds - bound, 0.0) / seconds if seconds > 0 else 0.0
    return replace(proof, status="feasible", objective=seconds, gap=gap)


def _require(demands: Demands, best: Priced) -> None:
    """Raise InconsistentPlanError if a plan breaks a hard requirement."""
    shape, decisions, _, evaluation = best
    if demands.allows(evaluation, decisions, shape):
        return
    broken = [b for b in demands.bounds if demands.broken(b, evaluation, decisions, shape)]
    hard = "; ".join(str(bound) for bound in broken if bound.requirement.hard)
    raise InconsistentPlanError(f"the plan does not keep what must hold: {hard}: search again")


def _too_large_for_host(searcher: MeshSearcher, plan: Plan) -> InfeasibleError:
    host = searcher.machine.host
    assert host is not None
    return InfeasibleError(
        f"no plan was found that fits the memory of the hosts of {searcher.machine.name}: what "
        f"{searcher.program.name} keeps there takes {format_bytes(plan.estimate.host_bytes)} per "
        f"device, of {format_bytes(host.bytes_per_chip)} ({format_bytes(host.memory_bytes)} for "
        f"{counted(host.chips, 'chip')}); keep less there, or take more chips",
        plan=plan,
    )


def _too_large(searcher: MeshSearcher, plan: Plan) -> InfeasibleError:
    return InfeasibleError(
        f"no plan was found that fits the memory limit of {format_bytes(searcher.limit)} per "
        f"device on {searcher.machine.name}; of the one that needs least, "
        f"{refusal(plan.estimate, searcher.limit)}",
        plan=plan,
        least_bytes=needed_bytes(plan.estimate),
    )
