"""What the kept plans of one group lose without habits, in a process of its own.

`benchmarks/habits.py` asks with a folder, a name for the group, names of habits, and how many
plans; the answer has the effects (`autoshard.study.worth.Effect`), and the seconds that it took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard.machine.machine import Machine
    from autoshard.study.worth import Group, Kept


def measure_group(question: Mapping[str, Any]) -> dict[str, Any]:
    """Effects of each habit on the plans of a group."""
    from autoshard.study.habits import named
    from autoshard.study.worth import effects

    began = time.perf_counter()
    group = kept_group(Path(question["folder"]), question["plans"])
    group = replace(group, name=question["name"])
    found = effects(group, named(question["habits"])) if group.plans else ()
    rows = [asdict(effect) for effect in found]
    return {"effects": rows, "seconds": time.perf_counter() - began}


def kept_group(folder: Path, count: int | None = None) -> Group:
    """The group whose plans `bench fidelity --keep` kept in a folder, with what was compiled.

    Args:
      folder: of one group.
      count: how many plans, the best first; all by default.

    Raises:
      ValueError: they were compiled with another release of jaxlib.
    """
    import autoshard
    from autoshard.machine.compiler import installed_release
    from autoshard.models.find import find
    from autoshard.study.worth import Group

    asked = json.loads((folder / "question.json").read_text())
    release = asked.get("jaxlib", installed_release())
    if release != installed_release():
        raise ValueError(
            f"these plans were compiled with jaxlib {release}, and {installed_release()} is "
            "installed, whose compilers have other habits: measure them with the former"
        )
    machine = autoshard.load_machine(asked["machine"])
    step = find(asked["program"], asked["arguments"], machine=machine)
    program = autoshard.trace(step.fn, *step.args, **step.options)
    return Group(folder.name, program, machine, tuple(islice(_kept(folder, machine), count)))


def _kept(folder: Path, machine: Machine) -> Iterator[Kept]:
    from autoshard.compiler.compiled import recall
    from autoshard.plan.plan import Plan
    from autoshard.study.worth import Kept

    answers = sorted(folder.glob("*.answer.json"), key=lambda path: int(path.name.split(".")[0]))
    for answer in answers:
        said = json.loads(answer.read_text())
        if "key" not in said:
            continue
        plan = Plan.load(folder / answer.name.replace(".answer", ""))
        compiled = recall(said["key"], plan.mesh, machine)
        if compiled is not None and compiled.timeline is not None:
            wire = sum(one.count * one.wire_bytes for one in compiled.final)
            yield Kept(plan, compiled.timeline.seconds, compiled.memory.peak_bytes, wire)


if __name__ == "__main__":
    print(json.dumps(measure_group(json.loads(sys.argv[1]))))
