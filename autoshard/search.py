"""The pipeline: a program and a machine in, the best plan found and its proof out.

For every mesh shape that is considered: build the problem, solve it, and solve it again under the
pins of every well-known scheme; schemes are also starting points, so the plan is never worse than
any of them. Mesh shapes whose bound already exceeds the best plan are dropped. The decisions found
are priced by the independent evaluator on the unfolded program, and that price is what a plan says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autoshard.baselines import SCHEMES, DoesNotApplyError, Pins
from autoshard.build import Built, build
from autoshard.callable_module import make_callable
from autoshard.cost.step import StepPrices, step_prices
from autoshard.dataflow import Dataflow, analyse
from autoshard.decisions import Decisions, Reshard
from autoshard.evaluate import Evaluation, evaluate, tidy
from autoshard.layout import to_partition_spec
from autoshard.machine import Machine, load
from autoshard.meshes import candidate_meshes
from autoshard.plan import Baseline, MeshShape, Plan, Proof
from autoshard.program import Program
from autoshard.repeats import Classes, find_repeats
from autoshard.solve import Outcome, Problem, Progress, Status
from autoshard.solve import evaluate as evaluate_problem
from autoshard.solve.minimum import minimum_limit
from autoshard.solve.staged import solve_staged

AXIS_NAMES = ("x", "y", "z")


class InfeasibleError(ValueError):
    """No plan satisfies what was asked; the message says what would."""


class MeshError(ValueError):
    """A mesh that does not use the machine's chips, or an axis of it that divides nothing."""


class NoPlanError(RuntimeError):
    """The time ran out before any plan was found."""


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """What a running search knows: seconds per step of the best plan, the bound, the time left."""

    mesh: str
    phase: str
    objective: float
    bound: float
    gap: float
    seconds: float
    seconds_left: float

    def __str__(self) -> str:
        best = f"{self.objective:.6g} s" if math.isfinite(self.objective) else "none yet"
        gap = f"{self.gap:.2%}" if math.isfinite(self.gap) else "-"
        return (
            f"[{self.seconds:6.1f} s] mesh {self.mesh}: {self.phase}: best {best}, "
            f"bound {max(self.bound, 0.0):.6g} s, gap {gap}, {self.seconds_left:.0f} s left"
        )


@dataclass(slots=True)
class _Found:
    """What the search of one mesh shape gave."""

    built: Built
    outcome: Outcome
    decisions: Decisions | None


@dataclass(slots=True)
class _Searcher:
    """Solves mesh shapes of one program and machine; coarser shapes first, as starting points."""

    program: Program
    flow: Dataflow
    classes: Classes
    machine: Machine
    limit: float
    gap: float
    progress: Callable[[SearchProgress], None] | None
    started: float
    time_limit: float
    ideal: float
    cutoff: float = math.inf
    found: dict[tuple[int, ...], _Found] = field(default_factory=dict)

    def left(self) -> float:
        """Seconds until the time limit."""
        return self.time_limit - (time.monotonic() - self.started)

    def prices(self, sizes: tuple[int, ...]) -> StepPrices:
        """The cost laws on a mesh of these sizes."""
        if sizes in self.found:
            return self.found[sizes].built.prices
        return step_prices(self.program, self.flow, self.machine, sizes)

    def solve(self, sizes: tuple[int, ...], seconds: float) -> _Found:
        """The best plan of one mesh shape, found once."""
        if sizes in self.found:
            return self.found[sizes]
        stop = time.monotonic() + seconds
        starts: list[Decisions] = []
        for coarse, axis in _coarser(sizes):
            known = self.solve(coarse, 0.4 * (stop - time.monotonic()))
            if known.decisions is not None:
                starts.append(_split(known.decisions, axis))
        self._tell(sizes, "build", None)
        built = build(self.prices(sizes), self.classes, limit=self.limit)
        plans = [plan for plan in map(built.encode, starts) if plan is not None]

        beaten = False

        def heard(news: Progress) -> None:
            nonlocal beaten
            self._tell(sizes, news.phase, news)
            if news.bound >= self.cutoff * (1 - self.gap):
                beaten = True
                raise KeyboardInterrupt  # the solver keeps what it has: this mesh cannot win

        outcome = solve_staged(
            built.problem,
            time_limit=max(stop - time.monotonic(), 0.5),
            gap=self.gap,
            warm_start=plans,
            progress=heard,
            known_bound=self.ideal,
        )
        decisions = None
        if outcome.solution is not None:
            decisions = tidy(built.prices, built.decode(outcome.solution.choices))
        self.found[sizes] = _Found(built, outcome, decisions)
        if outcome.report.limit_hit == "interrupted" and not beaten:
            raise KeyboardInterrupt  # by the user; what was found stays
        return self.found[sizes]

    def refined(self, sizes: tuple[int, ...]) -> Decisions | None:
        """What was found on a mesh shape, or else on a coarser one."""
        if sizes in self.found:
            return self.found[sizes].decisions
        for coarse, axis in _coarser(sizes):
            known = self.refined(coarse)
            if known is not None:
                return _split(known, axis)
        return None

    def _tell(self, sizes: tuple[int, ...], phase: str, news: Progress | None) -> None:
        if self.progress is None:
            return
        seconds = time.monotonic() - self.started
        self.progress(
            SearchProgress(
                mesh="x".join(map(str, sizes)),
                phase=phase,
                objective=math.inf if news is None else news.objective,
                bound=0.0 if news is None else news.bound,
                gap=math.inf if news is None else news.gap,
                seconds=seconds,
                seconds_left=max(self.time_limit - seconds, 0.0),
            )
        )


def _coarser(sizes: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
    """Shapes with two neighbouring axes merged, and the merged axis' position."""
    return [
        ((*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]), axis)
        for axis in range(len(sizes) - 1)
    ]


def _split(decisions: Decisions, axis: int) -> Decisions:
    """Decisions of a coarse mesh on the finer one whose axes `axis` and `axis + 1` it merged."""
    memo: dict[tuple[int, ...], tuple[int, ...]] = {}

    def longer(item: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if item is None:
            return None
        if item not in memo:
            memo[item] = (*item[: axis + 1], item[axis], *item[axis + 1 :])
        return memo[item]

    return replace(
        decisions,
        stored=tuple(map(longer, decisions.stored)),
        copy=tuple(map(longer, decisions.copy)),
        assignment=tuple(map(longer, decisions.assignment)),
    )


def search(
    program: Program,
    machine: Machine | str,
    *,
    mesh: Mapping[str, int] | None = None,
    memory_limit: float | None = None,
    time_limit: float = 60.0,
    gap: float = 0.01,
    baselines: bool = True,
    fold: bool = True,
    progress: Callable[[SearchProgress], None] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Find the best plan for `program` on `machine`.

    Args:
      program: from `autoshard.trace`.
      machine: a `Machine`, the name of a preset such as `v5p-64`, or the path of a TOML file.
      mesh: axis names and sizes; without it, mesh shapes of up to three axes are searched.
      memory_limit: bytes per device; default, what the chip has less its reserve.
      time_limit: seconds for the whole search.
      gap: stop when the plan is proven to be within this fraction of the best.
      baselines: also price the well-known schemes on the same mesh.
      fold: let repeated blocks share their decisions.
      progress: called as the search goes on. An interrupt (Ctrl-C) ends the search with the best
        plan so far, if there is one.
      options: kept in the plan beside those of the trace (`user_rules` of a file, say).

    Raises:
      MeshError: the mesh does not use all chips, or an axis divides nothing.
      InfeasibleError: no plan fits; the message names the smallest limit that works.
      NoPlanError: the time limit passed before a plan was found.
    """
    started = time.monotonic()
    machine = load(machine) if isinstance(machine, str) else machine
    limit = machine.chip.usable_bytes if memory_limit is None else float(memory_limit)
    shapes = _shapes(program, machine, mesh)
    flow = analyse(program)
    classes = find_repeats(program, fold=fold)
    ideal = step_prices(program, flow, machine, (machine.chips,)).ideal_seconds(classes.op_members)
    searcher = _Searcher(
        program, flow, classes, machine, limit, gap, progress, started, time_limit, ideal
    )
    table: list[tuple[str, float, float | None]] = []
    best: MeshShape | None = None
    decisions: Decisions | None = None
    limit_hit: str | None = None
    for number, shape in enumerate(shapes):
        left = searcher.left()
        if number and left <= 0:
            table.append((str(shape), searcher.ideal, None))
            continue
        # The first shape, most alike the network, gets half of the time; the rest share evenly.
        rest = len(shapes) - number
        share = left if rest == 1 else left * (0.5 if number == 0 else 1 / rest)
        try:
            result = searcher.solve(shape.sizes, share)
        except KeyboardInterrupt:
            limit_hit, baselines = "interrupted", False
            table.extend((str(other), ideal, None) for other in shapes[number:])
            refined = searcher.refined(shape.sizes)
            if best is None and refined is None:
                raise
            if refined is not None:
                priced = evaluate(searcher.prices(shape.sizes), refined, shape.names)
                if priced.estimate.step_seconds < searcher.cutoff:
                    best, decisions = shape, refined
            break
        report = result.outcome.report
        solved = result.decisions is not None
        table.append(
            (str(shape), max(report.bound, searcher.ideal), report.objective if solved else None)
        )
        if solved and report.objective < searcher.cutoff:
            best, searcher.cutoff = shape, report.objective
            decisions, limit_hit = result.decisions, report.limit_hit
    if best is None or decisions is None:
        raise _failure(searcher)
    return _finish(searcher, best, decisions, limit_hit, table, baselines, options, mesh is None)


def _shapes(program: Program, machine: Machine, mesh: Mapping[str, int] | None) -> list[MeshShape]:
    if mesh is None:
        return [MeshShape(AXIS_NAMES[: len(sizes)], sizes) for sizes in candidate_meshes(machine)]
    shape = MeshShape(tuple(mesh), tuple(int(size) for size in mesh.values()))
    if math.prod(shape.sizes) != machine.chips or min(shape.sizes, default=0) < 1:
        raise MeshError(
            f"mesh {shape} has {math.prod(shape.sizes)} devices, but {machine.name} has "
            f"{machine.chips} chips; give axes whose sizes multiply to {machine.chips}"
        )
    sizes_seen = {size for value in program.values for size in value.shape}
    useless = [
        f"  axis {name}={size} divides no dimension of any value"
        for name, size in zip(shape.names, shape.sizes, strict=True)
        if size > 1 and not any(dimension % size == 0 for dimension in sizes_seen)
    ]
    if useless:
        raise MeshError(
            f"mesh {shape} cannot be used by {program.name}:\n"
            + "\n".join(useless)
            + "\nchoose axis sizes that divide the batch or the model's dimensions"
        )
    return [shape]


def _failure(searcher: _Searcher) -> Exception:
    if not any(f.outcome.status is Status.INFEASIBLE for f in searcher.found.values()):
        return NoPlanError(
            f"the time limit of {searcher.time_limit:g} s passed before any plan was found: give "
            "more time, or fix the mesh"
        )
    reserved = searcher.program.constant_bytes
    smallest = math.inf
    for result in list(searcher.found.values())[:3]:  # the coarsest shapes come first
        needed = minimum_limit(
            result.built.problem, refused=max(searcher.limit - reserved, 0.0), time_limit=15.0
        )
        smallest = min(smallest, needed.achieved + reserved)
    return InfeasibleError(
        f"no plan fits the memory limit of {searcher.limit / 2**30:.2f} GiB per device on "
        f"{searcher.machine.name}; the smallest limit for which one was found is "
        f"{smallest / 2**30:.2f} GiB: try --memory-limit {math.ceil(smallest / 2**20)}MiB"
    )


def _baselines(searcher: _Searcher, shape: MeshShape) -> list[tuple[Baseline, Decisions | None]]:
    """Every scheme, solved on the coarsest mesh that can express it."""
    rows: list[tuple[Baseline, Decisions | None]] = []
    for scheme in SCHEMES:
        sizes, merged = shape.sizes, []
        while len(sizes) > scheme.axes:
            sizes = (sizes[0] * sizes[1], *sizes[2:])
            merged.append(0)
        built = searcher.solve(sizes, max(searcher.left(), 1.0)).built
        try:
            pins = scheme.pins(built)
        except DoesNotApplyError as error:
            rows.append((Baseline(scheme.name, None, None, f"does not apply: {error}"), None))
            continue
        outcome, fits = _solve_scheme(built, pins, max(searcher.left() / len(SCHEMES), 2.0))
        if outcome.solution is None:
            rows.append((Baseline(scheme.name, None, None, "does not apply: no plan"), None))
            continue
        decisions = built.decode(outcome.solution.choices)
        for axis in merged:
            decisions = _split(decisions, axis)
        estimate = evaluate(searcher.prices(shape.sizes), decisions, shape.names).estimate
        note = "" if outcome.report.gap < 1e-6 else f"within {outcome.report.gap:.1%} of its best"
        row = Baseline(
            scheme.name,
            estimate.step_seconds,
            estimate.peak_bytes,
            note if fits else "does not fit the memory limit",
        )
        rows.append((row, decisions if fits else None))
    return rows


def _solve_scheme(built: Built, pins: Pins, seconds: float) -> tuple[Outcome, bool]:
    """The best plan under `pins`; where none is found within the limit, the best without one."""
    stop = time.monotonic() + seconds
    free = replace(built.problem, limit=None)
    outcome = solve_staged(free, time_limit=seconds, gap=0.02, pins=pins)
    if outcome.solution is None or not _violations(built.problem, outcome):
        return outcome, True
    left = min(max(stop - time.monotonic(), 0.5), 5.0)
    limited = solve_staged(built.problem, time_limit=left, gap=0.02, pins=pins)
    return (outcome, False) if limited.solution is None else (limited, True)


def _violations(problem: Problem, outcome: Outcome) -> bool:
    assert outcome.solution is not None
    return bool(evaluate_problem(problem, outcome.solution.choices).violations)


def _finish(
    searcher: _Searcher,
    shape: MeshShape,
    decisions: Decisions,
    limit_hit: str | None,
    table: Sequence[tuple[str, float, float | None]],
    baselines: bool,
    options: Mapping[str, Any] | None,
    free_mesh: bool,
) -> Plan:
    program, machine = searcher.program, searcher.machine
    prices = searcher.prices(shape.sizes)
    evaluation = evaluate(prices, decisions, shape.names)
    rows: list[tuple[Baseline, Decisions | None]] = []
    if baselines:
        rows = _baselines(searcher, shape)
        for baseline, other in rows:
            seconds = baseline.step_seconds
            if other is None or seconds is None:
                continue
            if seconds < evaluation.estimate.step_seconds:
                decisions, evaluation = other, evaluate(prices, other, shape.names)
    if free_mesh:
        decisions, shape, prices, evaluation = _coarsest(
            program, machine, prices, decisions, shape, evaluation
        )
    objective = evaluation.estimate.step_seconds
    bound = float(min([objective, *(bound for _, bound, _ in table)]))
    left = (objective - bound) / objective if objective > 0 else 0.0
    status = "optimal" if left <= 1e-8 else "feasible"
    proof = Proof(
        status=status,
        objective=objective,
        bound=bound,
        gap=max(left, 0.0),
        seconds=time.monotonic() - searcher.started,
        limit_hit=None if status == "optimal" else limit_hit or "time",
        meshes=tuple(
            (name, float(low), None if up is None else float(up)) for name, low, up in table
        ),
    )
    return Plan(
        program=program.name,
        fingerprint=program.fingerprint,
        options={**program.options, **(options or {})},
        machine=machine.name,
        memory_limit=searcher.limit,
        mesh=shape,
        estimate=evaluation.estimate,
        proof=proof,
        specs=_specs(program, decisions, shape),
        moves=evaluation.moves,
        baselines=tuple(baseline for baseline, _ in rows),
        decisions=decisions,
        reshards=reshards_of(prices, decisions),
        types={
            "inputs": {program.values[v].path: str(program.values[v]) for v in program.inputs},
            "outputs": {program.values[v].path: str(program.values[v]) for v in program.outputs},
        },
    )


def _specs(program: Program, decisions: Decisions, shape: MeshShape) -> dict[str, dict[str, Any]]:
    def spec(value: int) -> Any:
        layout = decisions.stored[value] or (-1,) * len(shape.sizes)
        return to_partition_spec(layout, shape.names, len(program.values[value].shape))

    return {
        "inputs": {program.values[v].path: spec(v) for v in program.inputs},
        "outputs": {program.values[v].path: spec(v) for v in program.outputs},
    }


def reshards_of(prices: StepPrices, decisions: Decisions) -> tuple[Reshard, ...]:
    """The sequences of collectives of all copies in `decisions`, each once."""
    found: dict[object, Reshard] = {}
    for value in prices.program.values:
        before, after = decisions.stored[value.index], decisions.copy[value.index]
        if before is None or after is None:
            continue
        key = (value.shape, value.itemsize, before, after)
        if key not in found:
            steps = prices.reshard(value.index).steps(before, after)
            states = tuple(step.to_state for step in steps)
            found[key] = Reshard(value.shape, value.itemsize, before, after, states)
    return tuple(found.values())


def _coarsest(
    program: Program,
    machine: Machine,
    prices: StepPrices,
    decisions: Decisions,
    shape: MeshShape,
    evaluation: Evaluation,
) -> tuple[Decisions, MeshShape, StepPrices, Evaluation]:
    """Merge neighbouring axes that the plan always uses together, where that costs no more."""
    axis = 0
    while axis + 1 < len(shape.sizes):
        merged = _merge(decisions, axis)
        if merged is not None:
            sizes = (
                *shape.sizes[:axis],
                shape.sizes[axis] * shape.sizes[axis + 1],
                *shape.sizes[axis + 2 :],
            )
            coarse = MeshShape(AXIS_NAMES[: len(sizes)], sizes)
            coarse_prices = step_prices(program, prices.dataflow, machine, sizes)
            again = evaluate(coarse_prices, merged, coarse.names)
            slack = 1 + 1e-6
            if again.estimate.step_seconds <= evaluation.estimate.step_seconds * slack:
                decisions, shape, prices, evaluation = merged, coarse, coarse_prices, again
                continue
        axis += 1
    return decisions, shape, prices, evaluation


def _merge(decisions: Decisions, axis: int) -> Decisions | None:
    """`decisions` with axes `axis` and `axis + 1` as one, or None where some tuple differs."""
    memo: dict[tuple[int, ...], tuple[int, ...]] = {}

    def shorten(
        items: Sequence[tuple[int, ...] | None],
    ) -> tuple[tuple[int, ...] | None, ...] | None:
        result: list[tuple[int, ...] | None] = []
        for item in items:
            if item is None:
                result.append(None)
                continue
            if item[axis] != item[axis + 1]:
                return None
            if item not in memo:
                memo[item] = (*item[: axis + 1], *item[axis + 2 :])
            result.append(memo[item])
        return tuple(result)

    parts = [shorten(items) for items in (decisions.stored, decisions.copy, decisions.assignment)]
    if any(part is None for part in parts):
        return None
    stored, copy, assignment = parts
    assert stored is not None
    assert copy is not None
    assert assignment is not None
    return replace(decisions, stored=stored, copy=copy, assignment=assignment)


make_callable(__name__)
