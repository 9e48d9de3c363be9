"""The plans of one group of `autoshard bench fidelity`, in a process of its own.

A folder keeps them: NUMBER.json is a plan, and NUMBER.answer.json says its name and under which key
the compiler's answer lies, or why it refused. Both are read anew the next time, so that either side
is as the present code sees it; a plan that would be lowered otherwise now is compiled again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard.compiler.compiled import Compiled
    from autoshard.machine.machine import Machine
    from autoshard.models.find import Found
    from autoshard.plan.plan import Plan
    from autoshard.program.trace import Program


def measure_group(question: Mapping[str, Any]) -> None:
    """Price and compile every plan of one group; a line of JSON each in the file `answers`."""
    import autoshard
    from autoshard.machine.compiler import installed_release
    from autoshard.models.find import find

    machine = autoshard.load_machine(question["machine"])
    step = find(question["program"], question["arguments"], machine=machine)
    program = autoshard.trace(step.fn, *step.args, **step.options)
    folder = Path(question["plans"])
    folder.mkdir(parents=True, exist_ok=True)
    everything = folder / "done"
    if not everything.exists():
        about = {key: question[key] for key in ("program", "arguments", "machine")}
        about["jaxlib"] = installed_release()
        (folder / "question.json").write_text(json.dumps(about))
    plans = (
        _old(folder, program, machine) if everything.exists() else _new(question, program, machine)
    )
    with open(question["answers"], "a") as file:
        for number, (name, plan, answer) in enumerate(plans):
            compiled = answer or _compiled(plan, machine, step)
            row = {"plan": name, **_predicted(plan), **_found(plan, compiled)}
            print(json.dumps(row), file=file, flush=True)
            if answer is None:
                plan.save(folder / f"{number}.json")
                kept = {"name": name}
                kept |= {"error": compiled} if isinstance(compiled, str) else {"key": compiled.key}
                (folder / f"{number}.answer.json").write_text(json.dumps(kept))
    everything.touch()


def _new(
    question: Mapping[str, Any], program: Program, machine: Machine
) -> Iterator[tuple[str, Plan, Compiled | str | None]]:
    """Name and plan of all that are to be compared."""
    from autoshard.cli.bench import load_benchmark

    made = load_benchmark("variants").variants(
        program,
        machine,
        dict(zip("xyz", question["mesh"], strict=False)),
        distortions=question["distortions"],
        time_limit=question["time_limit"],
    )
    for variant in made:
        yield variant.name, variant.plan, None


def _old(
    folder: Path, program: Program, machine: Machine
) -> Iterator[tuple[str, Plan, Compiled | str | None]]:
    """Name, plan at the present prices, and what the compiler said earlier."""
    from autoshard.compiler.compiled import recall
    from autoshard.cost.step_prices import step_prices
    from autoshard.plan.plan import Plan
    from autoshard.search.assemble import priced_anew
    from autoshard.xla import analyse

    flow, prices = analyse(program, machine.chip), None
    for number in range(sum(1 for _ in folder.glob("*.answer.json"))):
        answer = json.loads((folder / f"{number}.answer.json").read_text())
        old = Plan.load(folder / f"{number}.json")
        prices = prices or step_prices(program, flow, machine, old.mesh.sizes)
        plan = priced_anew(old, prices)
        if plan.reshards != old.reshards:
            yield answer["name"], plan, None
        elif "error" in answer:
            yield answer["name"], plan, answer["error"]
        else:
            yield answer["name"], plan, recall(answer["key"], plan.mesh, machine)


def _compiled(plan: Plan, machine: Machine, step: Found) -> Compiled | str:
    """What the compiler says of a plan, or why it refuses."""
    import autoshard
    from autoshard.compiler.compiled import compile_plan
    from autoshard.compiler.target import CompileError
    from autoshard.plan.plan import PlanError

    try:
        return compile_plan(autoshard.lower(plan, step.fn, *step.args), machine)
    except (CompileError, PlanError) as error:
        return str(error).splitlines()[0]


def _predicted(plan: Plan) -> dict[str, Any]:
    estimate = plan.estimate
    return {
        "step": estimate.expected_seconds,
        "objective": estimate.step_seconds,
        "compute": estimate.compute_seconds,
        "collective": estimate.collective_seconds,
        "peak_gib": estimate.expected_bytes / 2**30,
        "peak_at": estimate.peak_at,
    }


def _found(plan: Plan, compiled: Compiled | str) -> dict[str, Any]:
    from autoshard.compiler.verdict import judge

    if isinstance(compiled, str):
        return {"error": compiled}
    estimate = plan.estimate
    verdict = judge(plan, compiled)
    wires = [sum(column) for column in zip(*verdict.wire_bytes().values(), strict=True)]
    tallies = verdict.comparison.tallies
    row: dict[str, Any] = {
        **dict(zip(("wire_gb", "made_gb", "final_gb"), (w / 1e9 for w in wires), strict=False)),
        "compiled_gib": compiled.memory.peak_bytes / 2**30,
        "arguments_gib": compiled.memory.argument_bytes / 2**30,
        "peak_ratio": compiled.memory.peak_bytes / max(estimate.expected_bytes, 1),
        "unplanned": sum(t.found - t.planned for t in verdict.involuntary),
        "missing": sum(max(t.planned - t.found, 0) for t in tallies),
        "compile_s": compiled.compile_seconds,
    }
    time = compiled.timeline
    if time is not None:
        row |= {
            "compiled": time.seconds,
            "compiled_compute": time.compute_seconds,
            "compiled_collective": time.collective_seconds,
            "compiled_exposed": time.exposed_seconds,
            "ratio": time.seconds / max(estimate.expected_seconds, 1e-12),
        }
    return row


if __name__ == "__main__":
    measure_group(json.loads(sys.argv[1]))
    print("{}")
