"""What of a solver's answer is believed.

Values of an integer model are rounded, priced anew and held to every row. Claims are held to the
best values known: "no solution exists" and "none costs less than this bound" are refuted by values
that do exist. The bound of a relaxation is computed here from its row duals, by weak duality, so
that it holds whatever the solver's tolerances. What is left without such a check is that an
integer model's bound is no better than the solver proved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.solve.backends.linear import LinearModel
from autoshard.solve.backends.task import Answer, Verdict, largest_coefficients
from autoshard.units import counted

TOLERANCE = 1e-6
"""By how much values may miss whole numbers and rows their sides, rows being divided by their
largest coefficient; for sides above one, and for bounds, relatively."""


@dataclass(frozen=True, slots=True, eq=False)
class ExactResult:
    """What a solver found, checked.

    Attributes:
      verdict: BROKEN when the answer contradicts the model (what else is here does not rest on it),
        FAILED when the solver ended without one; `note` says why.
      objective: the price of `values`, +inf without them.
      bound: no values cost less; +inf when there are none, -inf when nothing is known.
      values: integer variables are 0.0 or 1.0 exactly (not in a relaxation); None where no solution
        was found.
      row_duals: of a relaxation: by how much its price changes per unit of the rows' sides.
      note: the reason for the verdict, where it needs one.
      handover_seconds: until the solver itself began to work; NaN when it did not.
    """

    verdict: Verdict
    objective: float
    bound: float
    values: np.ndarray | None
    row_duals: np.ndarray | None = None
    note: str = ""
    handover_seconds: float = np.nan


def judged(model: LinearModel, answer: Answer, start: np.ndarray | None) -> ExactResult:
    """The result of an integer model; `start`, where given, is known to keep the model."""
    verdict, bound, note = answer.verdict, float(answer.bound), answer.note
    values, objective = None, np.inf
    if answer.values is not None:
        if wrong := faults(model, answer.values):
            verdict, bound, note = Verdict.BROKEN, -np.inf, wrong
        else:
            values = rounded(model, answer.values)
            objective = float(values @ model.costs)
    elif verdict is Verdict.OPTIMAL:
        verdict, bound, note = Verdict.BROKEN, -np.inf, "called solved, but without values"
    if start is not None and not objective <= float(start @ model.costs):
        values, objective = start, float(start @ model.costs)
    if values is not None and bound > objective + TOLERANCE * float(values @ abs(model.costs)):
        note = (
            "no solution is said to exist, but one is known"
            if verdict is Verdict.INFEASIBLE
            else f"nothing is said to cost less than {bound:.12g}, but one solution costs "
            f"{objective:.12g}"
        )
        verdict, bound = Verdict.BROKEN, -np.inf
    return ExactResult(verdict, objective, min(bound, objective), values, None, note)


def judged_relaxation(model: LinearModel, answer: Answer) -> ExactResult:
    """The result of a relaxation, with a bound of our own."""
    verdict, note, values = answer.verdict, answer.note, answer.values
    bound = np.inf if verdict is Verdict.INFEASIBLE else -np.inf
    if answer.row_duals is not None:
        bound = dual_bound(model, answer.row_duals)
    if values is not None and (wrong := faults(model, values, relax=True)):
        values = None
        if verdict is Verdict.OPTIMAL:
            verdict, note = Verdict.BROKEN, wrong
    objective = np.inf if values is None else float(values @ model.costs)
    duals = answer.row_duals if verdict is Verdict.OPTIMAL else None
    return ExactResult(verdict, objective, bound, values, duals, note)


def rounded(model: LinearModel, values: np.ndarray) -> np.ndarray:
    """Values with the integer variables made whole and the others within their range."""
    return np.where(model.integer, np.round(values), np.clip(values, 0.0, model.top)) + 0.0


def faults(model: LinearModel, values: np.ndarray, *, relax: bool = False) -> str:
    """How values break a model, or an empty string: every kind of fault, and the worst of each."""
    if values.shape != (model.size,):
        return f"values of shape {values.shape} for {counted(model.size, 'variable')}"
    if not np.isfinite(values).all():
        return f"values that are not finite: {int((~np.isfinite(values)).sum())} of {values.size}"
    found = []
    outside = np.maximum(-values, values - model.top) / np.maximum(model.top, 1.0)
    if outside.max(initial=0.0) > TOLERANCE:
        worst = int(outside.argmax())
        found.append(
            f"variable {worst} is {values[worst]:.9g}, outside of 0 to {model.top[worst]:.9g}"
        )
    if not relax:
        missed = np.abs(values - np.round(values)) * model.integer
        if missed.max(initial=0.0) > TOLERANCE:
            worst = int(missed.argmax())
            found.append(f"variable {worst} is {values[worst]:.9g}, not a whole number")
        values = rounded(model, values)
    sums = model.matrix @ values
    over = np.maximum(model.lower - sums, sums - model.upper)
    sides = np.maximum(
        *(np.where(np.isfinite(side), np.abs(side), 0.0) for side in (model.lower, model.upper))
    )
    allowed = TOLERANCE * np.maximum(
        largest_coefficients(model.matrix.indptr, model.matrix.data), sides
    )
    broken = over > allowed
    if broken.any():
        worst = int(np.where(broken, over / np.maximum(allowed, 1e-300), 0.0).argmax())
        found.append(
            f"{counted(int(broken.sum()), 'broken row')}: row {worst} sums to {sums[worst]:.12g} "
            f"instead of {model.lower[worst]:.12g} to {model.upper[worst]:.12g}"
        )
    return "; ".join(found)


def dual_bound(model: LinearModel, row_duals: np.ndarray) -> float:
    """What no values in their ranges that keep the rows can cost less than, by weak duality.

    With row duals d, rows lower <= A y <= upper and the sides s that d prices (the lower ones where
    d > 0, the upper ones where d < 0):

        costs . y  >=  d . s  +  sum_j top_j min(0, costs_j - (A' d)_j)

    It holds for any d, and so for what a solver with tolerances calls optimal
    (Neumaier and Shcherbina, https://doi.org/10.1007/s10107-003-0433-3), to the rounding of sums.
    """
    sides = np.where(row_duals > 0, model.lower, model.upper)
    duals = np.where(np.isfinite(sides), row_duals, 0.0)
    sides = np.where(np.isfinite(sides), sides, 0.0)
    reduced = model.costs - model.matrix.T @ duals
    return float(duals @ sides + np.minimum(reduced, 0.0) @ model.top)
