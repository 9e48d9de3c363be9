"""One part of a row of `policies.py`, in a process of its own.

A folder keeps what a row has made: NAME.json is a plan, NAME.answer.json says its title and what
was predicted, and, once it was compiled, what the compiler said, or why it refused. Modules that
were compiled before are not compiled again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from autoshard.compiler.compiled import Compiled
    from autoshard.machine.machine import Machine
    from autoshard.models.find import Found
    from autoshard.plan.plan import Plan
    from autoshard.problem.build import Built
    from autoshard.program.keep import Residuals
    from autoshard.program.trace import Program

POLICIES = {
    "everything": "save everything",
    "nothing": "full recompute",
    "products": "dots saveable",
    "products without batch dimensions": "dots without batch saveable",
    "attention": "attention saved",
    "products without batch dimensions, and attention": "dots without batch and attention",
}
"""Titles of `autoshard.search.keep.proposals.policies`, as JAX and MaxText call them."""

WORTH = 1.5
"""Schemes that take so many times the best one under full recompute are not priced further."""


class Row:
    """A program on a machine, and the folder of its plans."""

    def __init__(self, question: Mapping[str, Any]) -> None:
        import autoshard
        from autoshard.models.find import find

        self.question = question
        self.machine: Machine = autoshard.load_machine(question["machine"])
        self.step: Found = find(question["program"], machine=self.machine)
        self.program: Program = autoshard.trace(self.step.fn, *self.step.args, **self.step.options)
        self.folder = Path(question["folder"])
        self.folder.mkdir(parents=True, exist_ok=True)

    def keep(self, name: str, plan: Plan, **told: Any) -> None:
        """Put a plan into the folder."""
        plan.save(self.folder / f"{name}.json")
        self.tell(name, {**told, "mesh": str(plan.mesh), **predicted(plan, self.machine)})

    def tell(self, name: str, told: Mapping[str, Any]) -> None:
        """Put what is known of a plan into the folder."""
        (self.folder / f"{name}.answer.json").write_text(json.dumps(told, indent=1))


def predicted(plan: Plan, machine: Machine) -> dict[str, Any]:
    """What we say of a plan."""
    from autoshard.plan.fits import within

    estimate = plan.estimate
    return {
        "predicted": estimate.expected_seconds,
        "predicted_gib": estimate.expected_bytes / 2**30,
        "predicted_host_gib": estimate.host_bytes / 2**30,
        "predicted_fits": within(estimate.expected_bytes, machine.chip.usable_bytes),
    }


def price(row: Row) -> None:
    """Price every policy with every scheme on every mesh, and keep the plans."""
    from autoshard.program.keep import find_residuals
    from autoshard.program.rewritten import resaved
    from autoshard.search.keep.proposals import policies

    residuals = find_residuals(row.program.written)
    pinned = frozenset(one.name for one in residuals.values if one.pinned)
    there: dict[str, float] = {}
    for title, saved in sorted(policies(residuals), key=lambda one: one[0] != "nothing"):
        stacks = residuals.on_stacks(saved | pinned)
        size = sum(residuals.stacks(stacks).values()) / row.machine.chips
        policy = POLICIES[title]
        if policy not in (row.question["policies"] or POLICIES.values()):
            continue
        if size > row.machine.chip.usable_bytes:
            name = policy.replace(" ", "-")
            row.tell(name, {"policy": policy, "stacks_gib": size / 2**30, "predicted_fits": False})
            continue
        program = resaved(row.program, stacks)
        best = min(there.values(), default=float("inf"))
        worth = {name for name, seconds in there.items() if seconds <= WORTH * best} or None
        for name, scheme, plan in schemes(row, program, worth):
            row.keep(f"{policy}-{name}".replace(" ", "-"), plan, policy=policy, scheme=scheme)
            if title == "nothing" and predicted(plan, row.machine)["predicted_fits"]:
                there[name] = plan.estimate.expected_seconds
    (row.folder / "priced").touch()


def schemes(
    row: Row, program: Program, worth: Collection[str] | None
) -> Iterator[tuple[str, str, Plan]]:
    """The plans of the well-known schemes, or of those on meshes that are `worth` it."""
    from autoshard.problem.schemes import SCHEMES
    from autoshard.search.schemes_solved import solved_scheme

    for built, sizes in problems(row, program, row.question["meshes"]):
        for scheme in SCHEMES:
            name = f"{scheme.name}-{'x'.join(map(str, sizes))}"
            if scheme.axes == len(sizes) and (worth is None or name in worth):
                outcome, _ = solved_scheme(scheme, built, row.question["scheme_limit"])
                if outcome is not None and outcome.solution is not None:
                    made = planned(built, outcome.solution.choices, sizes)
                    yield name, scheme.name, made


def problems(
    row: Row, program: Program, meshes: Sequence[Sequence[int]]
) -> Iterator[tuple[Built, tuple[int, ...]]]:
    """The problem of a program on each of some meshes."""
    from autoshard.cost.step_prices import step_prices
    from autoshard.problem.build import build
    from autoshard.program.repeats import find_repeats
    from autoshard.xla import analyse

    flow, limit = analyse(program, row.machine.chip), row.machine.chip.usable_bytes
    classes = find_repeats(program)
    for sizes in map(tuple, meshes):
        yield build(step_prices(program, flow, row.machine, sizes), classes, limit=limit), sizes


def planned(built: Built, choices: Any, sizes: tuple[int, ...]) -> Plan:
    """The plan of a solution."""
    from autoshard.plan.evaluate import evaluate, tidy
    from autoshard.plan.plan import MeshShape, Proof
    from autoshard.search.assemble import assemble
    from autoshard.solve.limit_hit import LimitHit

    shape = MeshShape(tuple("xyz"[: len(sizes)]), sizes)
    decisions = tidy(built.prices, built.decode(choices))
    evaluation = evaluate(built.prices, decisions, shape.names)
    seconds = evaluation.estimate.step_seconds
    limit = built.prices.machine.chip.usable_bytes
    proof = Proof("feasible", seconds, 0.0, 1.0, 0.0, LimitHit.GAP)
    return assemble(built.prices, decisions, shape, evaluation, proof=proof, memory_limit=limit)


def mixed(row: Row) -> None:
    """Plans that save what dice say, laid out as is best at distorted prices, or at true ones."""
    from autoshard.program.keep import find_residuals
    from autoshard.program.rewritten import resaved
    from autoshard.search.alternatives import distorted
    from autoshard.solve.pipeline import solve

    residuals = find_residuals(row.program.written)
    for number in range(row.question["mixed"]):
        dice = np.random.default_rng(number)
        saved = thrown(residuals, dice, row.machine)
        program = resaved(row.program, saved)
        meshes = row.question["meshes"]
        for built, sizes in problems(row, program, [meshes[number % len(meshes)]]):
            problem = distorted(built.problem, 0.5, dice) if number % 2 else built.problem
            outcome = solve(problem, time_limit=row.question["scheme_limit"], gap=0.01)
            if outcome.solution is not None:
                made = planned(built, outcome.solution.choices, sizes)
                row.keep(f"mixed-{number}", made, policy="mixed", saved=sorted(saved))


def thrown(residuals: Residuals, dice: np.random.Generator, machine: Machine) -> tuple[str, ...]:
    """Some of the values that may be saved, whose stacks take no more than half of the memory."""
    pinned = [one.name for one in residuals.values if one.pinned]
    free = [one.name for one in residuals.values if not (one.pinned or one.tied)]
    chosen: list[str] = []
    for name in dice.permutation(free)[: dice.integers(2, 9)]:
        tried = residuals.on_stacks([*pinned, *chosen, str(name)])
        size = sum(residuals.stacks(tried).values()) / machine.chips
        if size <= machine.chip.usable_bytes / 2:
            chosen.append(str(name))
    return residuals.on_stacks([*pinned, *chosen])


def ours(row: Row, remat: str) -> None:
    """Our own plan, by a search over what is kept; `remat` as `autoshard.search` takes it."""
    import autoshard
    from autoshard.search.search import InfeasibleError, NoPlanError

    name = f"ours-{remat}"
    limit = row.question["time_limit"]
    try:
        plan = autoshard.search(
            row.program, row.machine, remat=remat, time_limit=limit, baselines=False
        )
    except (InfeasibleError, NoPlanError) as error:
        told = {"policy": "ours", "scheme": remat, "predicted_fits": False}
        print(name, error, file=sys.stderr)
        row.tell(name, {**told, "error": " ".join(str(error).split())})
        return
    row.keep(name, plan, policy="ours", scheme=remat, notes=list(plan.notes))


def refined(row: Row, remat: str, count: str) -> None:
    """Our own plan by `search --remat REMAT --refine COUNT`: the best of those that were compiled.

    What was compiled is kept, so that `compile` asks the compiler nothing again.
    """
    from autoshard.study.refine import refine

    limit = row.question["time_limit"]
    options = {"remat": remat, "time_limit": limit, "baselines": False}
    found = refine(
        row.program, row.machine, row.step.fn, *row.step.args, count=int(count), **options
    )
    told = {"policy": "ours", "scheme": f"{remat}, refined", "rounds": list(map(str, found.trials))}
    row.keep(f"ours-{remat}-refined", found.plan, **told)


def chosen(answers: Mapping[str, Mapping[str, Any]], count: int) -> list[str]:
    """The names of the plans to compile: ours, the mixed, the best `count` of each policy."""
    own = ("ours", "mixed")
    found = [k for k, one in answers.items() if one["policy"] in own and "mesh" in one]
    policies = dict.fromkeys(one["policy"] for one in answers.values())
    for policy in policies:
        fit = {
            name: one["predicted"]
            for name, one in answers.items()
            if one["policy"] == policy and policy not in own and one["predicted_fits"]
        }
        found += sorted(fit, key=lambda name: fit[name])[:count]
    return found


def read_folder(folder: Path) -> dict[str, dict[str, Any]]:
    """What is known of every plan of a row."""
    places = sorted(folder.glob("*.answer.json"))
    return {one.name.removesuffix(".answer.json"): json.loads(one.read_text()) for one in places}


def compile_all(row: Row) -> None:
    """Price the named plans anew, and compile those that were not."""
    import autoshard
    from autoshard.cost.step_prices import step_prices
    from autoshard.plan.plan import Plan
    from autoshard.search.assemble import priced_anew
    from autoshard.xla import analyse

    for name in chosen(read_folder(row.folder), row.question["schemes"]):
        place = row.folder / f"{name}.answer.json"
        told = json.loads(place.read_text())
        old = Plan.load(row.folder / f"{name}.json")
        program = autoshard.lower(old, row.step.fn, *row.step.args).program
        facts = analyse(program, row.machine.chip)
        prices = step_prices(program, facts, row.machine, old.mesh.sizes)
        plan = priced_anew(old, prices)
        answer = _compiled(row, plan)
        told |= predicted(plan, row.machine)
        told |= {"error": answer} if isinstance(answer, str) else found(plan, answer, row.machine)
        if not isinstance(answer, str):
            told.pop("error", None)
        plan.save(row.folder / f"{name}.json")
        row.tell(name, told)
        print(name, told.get("step"), told.get("error", ""), file=sys.stderr, flush=True)


def _compiled(row: Row, plan: Plan) -> Compiled | str:
    import autoshard
    from autoshard.compiler.compiled import compile_plan
    from autoshard.compiler.target import CompileError
    from autoshard.plan.plan import PlanError

    try:
        lowered = autoshard.lower(plan, row.step.fn, *row.step.args)
        return compile_plan(lowered, row.machine, time_limit=row.question["compile_limit"])
    except (CompileError, PlanError) as error:
        return " ".join(str(error).split())[:300]


def found(plan: Plan, compiled: Compiled, machine: Machine) -> dict[str, Any]:
    """What a compiler says of a plan."""
    from autoshard.compiler.verdict import judge

    verdict, memory = judge(plan, compiled), compiled.memory
    told: dict[str, Any] = {
        "key": compiled.key,
        "peak_gib": memory.peak_bytes / 2**30,
        "host_gib": memory.host_bytes / 2**30,
        "fits": memory.peak_bytes <= machine.chip.usable_bytes,
        "unplanned": sum(one.found - one.planned for one in verdict.involuntary),
        "transfers_agree": verdict.transfers_agree,
        "faults": verdict.faults[:6],
        "compile_s": compiled.compile_seconds,
    }
    if compiled.timeline is not None:
        told |= {
            "step": compiled.timeline.seconds,
            "compute": compiled.timeline.compute_seconds,
            "exposed": compiled.timeline.exposed_seconds,
        }
    return told


PARTS = {"price": price, "mixed": mixed, "ours": ours, "refined": refined, "compile": compile_all}


def main() -> None:
    """Do what the question asks for."""
    question = json.loads(sys.argv[1])
    row = Row(question)
    for words in question["parts"]:
        part, *more = words.split()
        PARTS[part](row, *more)


if __name__ == "__main__":
    main()
    print("{}")
