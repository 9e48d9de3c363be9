"""Fit the efficiencies, latencies and overlap of a machine to a table of times.

With `t_i` the time in row `i` and `p_i(x)` what the cost laws say for parameters `x`,

    minimise  sum_i rho( (ln p_i(x) - ln t_i) / s ),     rho(z) = 2 (sqrt(1 + z^2) - 1),

with `x` within its physical bounds. The logarithm makes errors relative; the soft-l1 loss `rho`
counts small errors squared and large ones (beyond `s`, 10 %) about linearly, so that a few odd
timings do not decide. Solved by trust-region reflective least squares (Branch, Coleman, Li, SIAM J.
Sci. Comput. 1999; `scipy.optimize.least_squares`).

A table need not tell all parameters apart: large matmuls say nothing of the launch time. With the
Jacobian `J` of `ln p` at the minimum and `sigma` the robust spread of the errors, the covariance of
`x` is about `sigma^2 (J'J)^-1`. While some parameter has a standard deviation of more than half of
its value, the least certain one goes back to what it was, and the others are fitted again. What a
chip does is told by operations alone, never by collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from autoshard.machine.machine import Machine
from autoshard.study.calibrate.laws import Laws, laws
from autoshard.study.calibrate.parameters import (
    Parameter,
    from_coordinate,
    parameters,
    to_coordinate,
    value,
    with_values,
)
from autoshard.study.calibrate.report import KindReport, ParameterReport, Report, errors
from autoshard.study.calibrate.table import Row, TableError, message, rows

ORDINARY_ERROR = 0.1
"""Relative error up to which the loss is quadratic: what clocks and simple laws leave."""

LEAST_SPREAD = 0.01
"""No table is trusted to more than 1 %, however well a few rows agree."""

MOST_UNCERTAIN = 0.5
"""Standard deviation of a fitted parameter, relative to its value, from which it is not fitted."""

INSIDE = 0.1
"""A fit starts at least so far from the bounds; next to one a trust region is tiny."""

FELT = 0.01
"""A row tells of a parameter where a change of it by a factor moves the time by 1 % of that."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A machine fitted to a table.

    Attributes:
      machine: with the fitted values, and one more entry in `sources`.
      report: what changed, by how much, and what it was read from.
    """

    machine: Machine
    report: Report


def fit(table: pd.DataFrame, machine: Machine, *, source: str = "a table of times") -> Fit:
    """Fit what a table of times tells of a machine; the rest stays as it is.

    Args:
      table: rows as `autoshard.study.calibrate.columns` describes them.
      machine: where the fit starts; its peaks, bandwidths and shape are taken as they are.
      source: what to call the table in the machine's `sources`.

    Raises:
      TableError: the table has faults (all are named), or no rows.

    >>> from autoshard.machine import load
    >>> table = pd.DataFrame([{"kind": "launch", "seconds": 4e-6}] * 3)
    >>> fit(table, load("h100-8")).machine.chip.launch_seconds
    4e-06
    """
    checked = rows(table)
    if not checked:
        raise TableError("the table has no rows; there is nothing to fit to")
    priced, faults = laws(checked, machine)
    if faults:
        raise TableError(message(faults, table))
    every = parameters(machine)
    scales = {parameter: _scale(priced, machine, parameter) for parameter in every}
    free = [parameter for parameter in every if _touched(priced, machine, parameter).any()]
    told = set(free)
    fitted = machine
    while free:
        fitted, uncertainty = _solve(priced, machine, free, scales)
        worst = int(np.argmax(uncertainty))
        if uncertainty[worst] <= MOST_UNCERTAIN:
            break
        del free[worst]
    # More digits than the table tells would look like knowledge.
    rounded = {parameter: float(f"{value(fitted, parameter):.4g}") for parameter in free}
    fitted = with_values(machine, rounded)
    report = _report(checked, priced, (machine, fitted), every, set(free), told, scales)
    names = ", ".join(parameter.name for parameter in free)
    if names:
        fitted = replace(fitted, sources=(*machine.sources, f"{source}: {names} fitted to it"))
    return Fit(fitted, report)


def _solve(
    priced: Laws, machine: Machine, free: Sequence[Parameter], scales: dict[Parameter, float]
) -> tuple[Machine, Floats]:
    """The machine with the best values of the free parameters, and how uncertain each is."""
    logs = np.log(priced.measured)

    def at(coordinates: Floats) -> Machine:
        return with_values(
            machine,
            {
                parameter: from_coordinate(parameter, float(coordinate), scales[parameter])
                for parameter, coordinate in zip(free, coordinates, strict=True)
            },
        )

    def residuals(coordinates: Floats) -> Floats:
        return _logs(priced, at(coordinates)) - logs

    start = np.array([_start(p, value(machine, p), scales[p]) for p in free])
    least = np.array(
        [-np.inf if p.kind == "efficiency" else to_coordinate(p, p.least, scales[p]) for p in free]
    )
    most = np.array(
        [np.inf if p.kind == "seconds" else to_coordinate(p, p.most, 1.0) for p in free]
    )
    found = least_squares(
        residuals,
        start,
        bounds=(least, most),
        loss="soft_l1",
        f_scale=ORDINARY_ERROR,
        x_scale="jac",
    )
    best = at(found.x)
    slopes = np.stack([_slopes(priced, best, p, scales[p]) for p in free], axis=1)
    off = residuals(found.x)
    # Of a normal law, 1.4826 times the median of |error| is the standard deviation.
    sigma = max(1.4826 * float(np.median(np.abs(off))), LEAST_SPREAD)
    deviations = sigma * _deviations(slopes)
    sizes = np.array([_size(machine, best, p, scales[p]) for p in free])
    # Rows that are all faster than the peak scatter widely about it, and yet tell what is best.
    at_most = np.array([p.kind == "efficiency" and value(best, p) > 1 - 1e-6 for p in free])
    return best, np.where(at_most, 0.0, deviations / sizes)


def _start(parameter: Parameter, number: float, scale: float) -> float:
    """The coordinate from which the fit starts: well inside of the bounds."""
    if parameter.kind == "seconds":
        return max(number / scale, INSIDE)
    number = min(number, 1.0 - INSIDE)
    return to_coordinate(parameter, max(number, INSIDE * (parameter.kind == "overlap")), scale)


def _deviations(slopes: Floats) -> Floats:
    """The roots of the diagonal of (J'J)^-1; huge in directions that no row tells of."""
    lengths = np.maximum(np.linalg.norm(slopes, axis=0), 1e-12)
    scaled = slopes / lengths
    squares, directions = np.linalg.eigh(scaled.T @ scaled)
    return np.sqrt((directions**2 / np.maximum(squares, 1e-12)).sum(axis=1)) / lengths


def _slopes(priced: Laws, machine: Machine, parameter: Parameter, scale: float) -> Floats:
    """d ln(predicted) / d coordinate of every row, from the side that stays within the bounds."""
    here = value(machine, parameter)
    step = 1e-4 * (scale if parameter.kind == "seconds" else 1.0)
    if parameter.kind == "efficiency":
        there = with_values(machine, {parameter: here * (1 - step)})
        return (_logs(priced, machine) - _logs(priced, there)) / step
    if parameter.kind == "overlap" and here + step > parameter.most:
        step = -step
    there = with_values(machine, {parameter: here + step})
    change = _logs(priced, there) - _logs(priced, machine)
    return change / (step / scale if parameter.kind == "seconds" else step)


def _size(before: Machine, after: Machine, parameter: Parameter, scale: float) -> float:
    """How large a parameter is, in its coordinate; a factor of an efficiency is 1."""
    if parameter.kind != "seconds":
        return 1.0
    return (max(value(before, parameter), value(after, parameter)) or scale) / scale


def _felt(
    priced: Laws, machine: Machine, parameter: Parameter, scales: dict[Parameter, float]
) -> NDArray[np.bool_]:
    """The rows whose time follows a parameter, where it is of a size that the rows can have."""
    scale = scales[parameter]
    if parameter.kind == "seconds":
        number = max(value(machine, parameter), scale)
        machine = with_values(machine, {parameter: number})
        return np.abs(_slopes(priced, machine, parameter, scale)) * number / scale >= FELT
    return np.abs(_slopes(priced, machine, parameter, scale)) >= FELT


def _touched(priced: Laws, machine: Machine, parameter: Parameter) -> NDArray[np.bool_]:
    """The rows that another value of a parameter would make longer."""
    here = value(machine, parameter)
    if parameter.kind == "seconds":
        worse = 2 * here + 1.0
    else:
        worse = here / 1000 if parameter.kind == "efficiency" else float(here < 0.5)
    there = with_values(machine, {parameter: worse})
    moved = ~np.isclose(priced.seconds(there), priced.seconds(machine), rtol=1e-9, atol=0.0)
    if parameter.name.startswith("chip."):
        for group in priced.collectives:
            moved[group.rows] = False
    return moved


def _scale(priced: Laws, machine: Machine, parameter: Parameter) -> float:
    """Seconds that a latency may have: those of the shortest row that it is a part of."""
    if parameter.kind != "seconds":
        return 1.0
    touched = _touched(priced, machine, parameter)
    return float(priced.measured[touched].min()) if touched.any() else 1.0


def _logs(priced: Laws, machine: Machine) -> Floats:
    return np.log(np.maximum(priced.seconds(machine), np.finfo(float).tiny))


def _report(
    checked: Sequence[Row],
    priced: Laws,
    machines: tuple[Machine, Machine],
    every: Sequence[Parameter],
    free: set[Parameter],
    told: set[Parameter],
    scales: dict[Parameter, float],
) -> Report:
    before, after = machines
    old, new, measured = priced.seconds(before), priced.seconds(after), priced.measured
    entries = []
    for parameter in every:
        behind = _felt(priced, after, parameter, scales) & (parameter in told)
        entries.append(
            ParameterReport(
                name=parameter.name,
                label=parameter.label,
                unit="s" if parameter.kind == "seconds" else "",
                before=value(before, parameter),
                after=value(after, parameter),
                rows=int(behind.sum()),
                errors_before=errors(old, measured, behind),
                errors_after=errors(new, measured, behind),
                note=_note(parameter, after, parameter in free, parameter in told),
            )
        )
    kinds = np.array([row.kind for row in checked])
    groups = tuple(
        KindReport(
            str(kind),
            int((kinds == kind).sum()),
            errors(old, measured, kinds == kind),
            errors(new, measured, kinds == kind),
        )
        for kind in dict.fromkeys(kinds.tolist())
    )
    return Report(tuple(entries), groups)


def _note(parameter: Parameter, after: Machine, free: bool, told: bool) -> str:
    if not told:
        return "stays: no row tells of it"
    if not free:
        return "stays: its rows do not determine it"
    number = value(after, parameter)
    if parameter.kind == "efficiency" and number > 1 - 1e-6:
        return "at its bound: the rows are faster than the peak in the machine file"
    if parameter.kind == "seconds" and number <= parameter.least:
        return "at its bound: no row shows any"
    return ""
