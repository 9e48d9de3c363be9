"""Kept plans: how they are written, priced again, solved again, and compared.

A file is for readers first: price, layouts of the inputs, collectives by kind and axes. The
decisions, from which it is priced again, are compressed JSON in lines of base64.
"""

from __future__ import annotations

import base64
import json
import math
import textwrap
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import msgspec

from autoshard.cost.step_prices import step_prices
from autoshard.plan.decisions import Decisions, WrittenDecisions
from autoshard.plan.evaluate import evaluate
from autoshard.plan.plan import Plan, Proof
from autoshard.plan.text.layouts import folded_layouts
from autoshard.search.assemble import assemble
from autoshard.search.search import search
from autoshard.xla import analyse
from tests.corpus.cases import Case

FOLDER = Path(__file__).with_name("plans")
TOLERANCE = 1e-9
"""Relative, of seconds; peak bytes are whole numbers and must be equal."""
SAME = 1e-6
"""Relative, of seconds: proven optima may differ by what the solver rounds."""
WIDTH = 96


@dataclass(frozen=True, slots=True)
class Kept:
    """A plan as the corpus keeps it.

    Attributes:
      program, machine, mesh: the case.
      fingerprint, jax: of the traced program, and the version of JAX that traced it.
      step_seconds, compute_seconds, collective_seconds, peak_bytes, peak_at: the estimate.
      bound_seconds: proven in the space of plans, when the plan was found.
      layouts: of the inputs, folded.
      collectives: by kind and axes, how often in a step and bytes in all.
      decisions: lines of base64.
    """

    program: str
    machine: str
    mesh: Mapping[str, int]
    fingerprint: str
    jax: str
    step_seconds: float
    compute_seconds: float
    collective_seconds: float
    peak_bytes: int
    peak_at: str
    bound_seconds: float
    layouts: Mapping[str, str]
    collectives: Mapping[str, str]
    decisions: tuple[str, ...]

    def decoded(self) -> Decisions:
        """The decisions."""
        data = zlib.decompress(base64.b64decode("".join(self.decisions)))
        return msgspec.json.decode(data, type=WrittenDecisions).record()


def path_of(case: Case) -> Path:
    """Where the plan of a case is kept."""
    return FOLDER / f"{case.name}.json"


def read(case: Case) -> Kept:
    """The kept plan of a case."""
    data = json.loads(path_of(case).read_text())
    return Kept(**{**data, "decisions": tuple(data["decisions"])})


def write(case: Case, kept: Kept) -> None:
    """Keep a plan."""
    FOLDER.mkdir(exist_ok=True)
    path_of(case).write_text(json.dumps(asdict(kept), indent=1, ensure_ascii=False) + "\n")


def solve(case: Case, *, time_limit: float, start: Plan | None = None) -> Plan:
    """The best plan that the search finds; proven to be the best where the case is solved again."""
    program, machine = case.build()
    return search(
        program,
        machine,
        mesh=case.mesh,
        memory_limit=case.memory_limit,
        time_limit=time_limit,
        gap=0.0 if case.solved else 1e-3,
        baselines=False,
        start=start,
    )


def priced(case: Case, decisions: Decisions, bound: float = 0.0) -> Plan:
    """The plan of these decisions at the prices of today."""
    program, machine = case.build()
    prices = step_prices(program, analyse(program, machine.chip), machine, case.sizes)
    found = evaluate(prices, decisions, case.shape.names)
    seconds = found.estimate.step_seconds
    proof = Proof("feasible", seconds, bound, 1 - bound / seconds, 0.0, "gap")
    limit = machine.chip.usable_bytes if case.memory_limit is None else case.memory_limit
    return assemble(prices, decisions, case.shape, found, proof=proof, memory_limit=limit)


def kept(case: Case, plan: Plan) -> Kept:
    """What is kept of a plan."""
    data = json.dumps(plan.decisions.to_json(), separators=(",", ":")).encode()
    text = base64.b64encode(zlib.compress(data, 9)).decode()
    inputs = folded_layouts(plan)[0].lines
    return Kept(
        program=case.step,
        machine=case.machine,
        mesh=case.mesh,
        fingerprint=plan.fingerprint,
        jax=jax.__version__,
        step_seconds=plan.estimate.step_seconds,
        compute_seconds=plan.estimate.compute_seconds,
        collective_seconds=plan.estimate.collective_seconds,
        peak_bytes=plan.estimate.peak_bytes,
        peak_at=plan.estimate.peak_at.partition(" (")[0],  # lines of code move
        bound_seconds=plan.proof.bound,
        layouts={line.path: line.text for line in inputs},
        collectives=_collectives(plan),
        decisions=tuple(textwrap.wrap(text, WIDTH)),
    )


def _collectives(plan: Plan) -> dict[str, str]:
    found: dict[str, tuple[int, int]] = {}
    for move in plan.moves:
        key = f"{move.kind} over {','.join(move.axes)}"
        count, size = found.get(key, (0, 0))
        found[key] = count + move.count, size + move.count * move.bytes
    return {key: f"{count} times, {size} bytes" for key, (count, size) in sorted(found.items())}


def changes(before: Kept, now: Kept, tolerance: float = TOLERANCE) -> list[str]:
    """What differs in price, and, if anything does, in layouts and collectives; a line each."""
    found = list(_prices(before, now, tolerance))
    for name in ("layouts", "collectives") if found else ():
        old, new = getattr(before, name), getattr(now, name)
        for key in dict.fromkeys([*old, *new]):
            if old.get(key) != new.get(key):
                found.append(f"{key}: {old.get(key, 'not there')} -> {new.get(key, 'not there')}")
    return found


def _prices(before: Kept, now: Kept, tolerance: float) -> Iterator[str]:
    for name in ("step_seconds", "compute_seconds", "collective_seconds", "peak_bytes"):
        old, new = getattr(before, name), getattr(now, name)
        rounded = tolerance > TOLERANCE  # of two optima only the step must be the same
        if rounded and name != "step_seconds":
            continue
        if not math.isclose(old, new, rel_tol=tolerance):
            yield f"{name}: {old!r} -> {new!r} ({(new - old) / old:+.3%})"


def message(case: Case, heading: str, lines: list[str]) -> str:
    """What a failing test says: what changed, and how to accept it."""
    repair = (
        "if this is what the change is meant to do: run "
        f"`python -m tests.corpus.make {case.name}`, look at the diff, and commit it"
    )
    return "\n  ".join([f"{case.name}: {heading}", *lines, repair])
