"""What is believed of compilers, held to them: `autoshard bench habits`.

Every habit of `autoshard.xla.HABITS` with a probe is asked of the installed compilers: a small
program is compiled for a machine that need not be there, and the module read.

    holds           the compiler does what the habit claims
    broken          it does not
    no probe        nobody knows how to ask
    not installed   the compiler is not there

With `--without NAME` and the plans that `bench fidelity --keep FOLDER` kept, it says what each of
these habits buys: errors of predicted steps and peaks without it, less those with it.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard.study.habits import Group
    from autoshard.xla import Habit

COLUMNS = ("habit", "status", "seconds", "version")
WIDTHS = (44, 13, 7, 26)
WORTH = ("habit", "plans", "changed", "step", "peak", "worth it")
WORTH_WIDTHS = (44, 6, 8, 9, 9, 9)


def run(options: argparse.Namespace) -> int:
    """Ask for every habit, or what some of them buy."""
    from autoshard.cli.common import FAILED, CommandError
    from autoshard.compiler.probes import KINDS
    from autoshard.study.habits import HabitError, ask, named
    from autoshard.xla import HABITS

    wanted = {compiler for compiler, kind in KINDS.items() if kind in options.compile}
    habits = [
        habit
        for habit in HABITS
        if habit.compiler in wanted and fnmatch.fnmatch(habit.name, options.only)
    ]
    if options.without:
        try:
            every = options.without == ["all"]
            habits = habits if every else list(named(options.without))
        except HabitError as error:
            raise CommandError(str(error)) from error
        return _worth(options, habits)
    from autoshard.cli.rows import Rows

    rows = Rows(COLUMNS, WIDTHS)
    counts: Counter[str] = Counter()
    try:
        for habit, found in zip(habits, ask(habits), strict=True):
            counts[found.status] += 1
            rows.add(
                {
                    "habit": habit.name, "status": found.status, "seconds": found.seconds,
                    "version": found.version, "seen": "; ".join(habit.seen), "claim": habit.claim,
                    "source": habit.source, "detail": found.detail,
                }
            )  # fmt: skip
            if found.status == "broken":
                print(f"    claimed: {habit.claim}\n    {found.detail}")
    except KeyboardInterrupt:
        print("\ninterrupted: what follows is of the rows above", file=sys.stderr)
    rows.write(options.csv)
    print("\n" + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return FAILED if counts["broken"] else 0


def _worth(options: argparse.Namespace, habits: list[Habit]) -> int:
    from autoshard.cli.common import CommandError
    from autoshard.cli.rows import Rows
    from autoshard.study.habits import worth

    if options.kept is None:
        raise CommandError(
            "--without needs --kept FOLDER, with the plans of `autoshard bench fidelity --keep`"
        )
    groups = list(kept_groups(Path(options.kept)))
    if not groups:
        raise CommandError(f"{options.kept!r} has no compiled plans that are still in the cache")
    rows = Rows(WORTH, WORTH_WIDTHS)
    for one in worth(groups, [habit.name for habit in habits]):
        rows.add(
            {
                "habit": one.name, "plans": one.plans, "changed": one.changed,
                "step": f"{one.step:+.2%}", "peak": f"{one.peak:+.2%}",
                "worth it": "yes" if one.is_worth_it else "no",
            }
        )  # fmt: skip
    rows.write(options.csv)
    return 0


def kept_groups(folder: Path) -> Iterator[Group]:
    """The groups whose plans `bench fidelity --keep` kept in a folder, with what was compiled."""
    import autoshard
    from autoshard import models
    from autoshard.study.habits import Group

    for place in sorted(folder.iterdir()):
        question = place / "question.json"
        if not question.exists():
            continue
        asked = json.loads(question.read_text())
        step = models.build(asked["program"], **asked["arguments"])
        program = autoshard.trace(step.fn, *step.args, **step.options)
        machine = autoshard.load_machine(asked["machine"])
        plans = tuple(_kept(place, machine))
        if plans:
            yield Group(place.name, program, machine, plans)


def _kept(place: Path, machine: Any) -> Iterator[Any]:
    from autoshard.compiler.compiled import recall
    from autoshard.plan.plan import Plan
    from autoshard.study.habits import Kept

    for answer in sorted(place.glob("*.answer.json")):
        said = json.loads(answer.read_text())
        if "key" not in said:
            continue
        plan = Plan.load(place / answer.name.replace(".answer", ""))
        compiled = recall(said["key"], plan.mesh, machine)
        if compiled is not None and compiled.timeline is not None:
            yield Kept(plan, compiled.timeline.seconds, compiled.memory.peak_bytes)
