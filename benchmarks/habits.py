"""What is believed of compilers, held to them: `autoshard bench habits`.

Every habit of `autoshard.xla.HABITS` with a probe is asked of the installed compilers: a small
program is compiled for a machine that need not be there, and the module read.

    holds           the compiler does what the habit claims
    broken          it does not
    no probe        nobody knows how to ask
    not installed   the compiler is not there

Faults of XLA's partitioner (`autoshard.lower.partitioner`) are asked for likewise, of a small op
that is cut over fake CPU devices: one that holds is still there, a lost one is known to be mended,
and of a broken one something else is believed than is found.

With `--without NAME` and the plans that `bench fidelity --keep FOLDER` kept, it says what each of
these habits buys. Errors of predictions grow where a habit is denied; a group is a program on a
machine and a mesh (`autoshard.study.worth`):

    changed         plans that are predicted otherwise without it
    moved           plans whose collectives, or bytes on the wire, are others without it
    step, peak      growth of these errors, the mean over all plans of its compiler and chips
    wire            likewise, of bytes that a device sends
    buys, group     the most that the error of steps or peaks grows in one group, and in which
    worth it        yes, from 0.5 % on; no; collectives: it decides those, and is not judged by
                    steps and peaks; memory: peaks are said too small without it; no plan asks: it
                    cannot be judged by these plans
    kept for        why it stays all the same (`autoshard.xla.habits.reasons`)

The last row denies them all at once. Every group is a process of its own
(`benchmarks/habits_group.py`), small programs first. With `--known FILE` nothing is measured twice:
what is found is added to the file, whose lines may be of several folders and of several releases of
jaxlib. With `--enough` a habit that is worth it in one group is left out of those that come later.
`--markdown FILE` writes the rows as a page, with the groups that they are of:
`benchmarks/HABITS.md` is one.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from autoshard.units import format_percent

if TYPE_CHECKING:
    from autoshard.study.worth import Effect
    from autoshard.xla import Habit

COLUMNS = ("habit", "status", "seconds", "version")
WIDTHS = (44, 13, 7, 26)
WORTH = (
    "habit", "plans", "changed", "moved", "step", "peak", "wire", "buys", "worth it", "kept for",
    "group",
)  # fmt: skip
ERRORS = ("step", "peak", "wire")
WORTH_WIDTHS = (44, 5, 7, 5, 8, 8, 8, 8, 12, 11, 0)
GROUP = Path(__file__).with_name("habits_group.py")


def run(options: argparse.Namespace) -> int:
    """Ask for every habit, or what some of them buy."""
    from autoshard.cli.common import FAILED, CommandError
    from autoshard.compiler.partitioner import KIND, ask_fault
    from autoshard.compiler.probes import KINDS
    from autoshard.lower.partitioner import FAULTS
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

    faults = [
        fault
        for fault in FAULTS
        if KIND in options.compile and fnmatch.fnmatch(fault.name, options.only)
    ]
    rows = Rows(COLUMNS, WIDTHS)
    options.told = rows.kept
    counts: Counter[str] = Counter()
    lacking: dict[str, None] = {}
    try:
        answers = chain(ask(habits), map(ask_fault, faults))
        for believed, found in zip((*habits, *faults), answers, strict=True):
            counts[found.status] += 1
            if found.status == "not installed":
                lacking[found.detail] = None
            rows.add(
                {
                    "habit": believed.name, "status": found.status, "seconds": found.seconds,
                    "version": found.version, "seen": "; ".join(believed.seen),
                    "claim": believed.claim, "source": believed.source, "detail": found.detail,
                }
            )  # fmt: skip
            if found.status == "broken":
                print(f"    claimed: {believed.claim}\n    {found.detail}")
    except KeyboardInterrupt:
        print("\ninterrupted: what follows is of the rows above", file=sys.stderr)
    rows.write(options.csv)
    print("\n" + ", ".join(f"{count} {status}" for status, count in counts.items()))
    for why in lacking:
        print(f"autoshard: {why}", file=sys.stderr)
    return FAILED if counts["broken"] else 0


def _worth(options: argparse.Namespace, habits: list[Habit]) -> int:
    from autoshard.cli.common import FAILED, CommandError
    from autoshard.cli.rows import Rows
    from autoshard.study.worth import TOGETHER, worth
    from autoshard.units import counted

    if options.kept is None:
        raise CommandError(
            "--without needs --kept FOLDER, with the plans of `autoshard bench fidelity --keep`"
        )
    names = [habit.name for habit in habits]
    effects, errors = measured(
        Path(options.kept),
        names,
        options.plans,
        options.workers,
        known=Path(options.known) if options.known else None,
        enough=options.enough,
    )
    if not effects and not errors:
        raise CommandError(f"{options.kept!r} has no compiled plans that are still in the cache")
    reasons = {habit.name: habit.kept_for for habit in habits}
    formats = dict.fromkeys(ERRORS, partial(format_percent, form="+.2f"))
    rows = Rows(WORTH, WORTH_WIDTHS, {**formats, "buys": partial(format_percent, form=".2f")})
    options.told = rows.kept
    for name in (*names, TOGETHER):
        one = worth(name, effects)
        if name == TOGETHER and not one.plans:
            continue
        rows.add(
            {
                "habit": one.habit, "plans": one.plans, "changed": one.changed, "moved": one.moved,
                **{word: getattr(one, word) for word in ERRORS},
                "buys": one.buys, "worth it": one.verdict,
                "group": one.group,
                "kept for": reason.kind if (reason := reasons.get(name)) else "",
            }
        )  # fmt: skip
    rows.write(options.csv)
    if options.markdown:
        Path(options.markdown).write_text(
            page(habits, effects, enough=options.enough), encoding="utf-8"
        )
        print(f"autoshard: wrote {options.markdown}", file=sys.stderr)
    counts = Counter(worth(name, effects).verdict for name in names)
    groups = len({effect.group for effect in effects})
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    print(f"\nof {counted(len(names), 'habit')} over {groups} groups: {said}")
    for error in errors:
        print(f"autoshard: {error}", file=sys.stderr)
    return FAILED if errors else 0


def page(habits: Sequence[Habit], effects: Sequence[Effect], *, enough: bool = False) -> str:
    """What each habit buys, the dearest first, as Markdown.

    Args:
      habits: that were asked for.
      effects: of them, in all groups.
      enough: whether those that are worth it in one group were left out of later ones.
    """
    from autoshard.show.document import versions
    from autoshard.study.worth import LEAST_WORTH, TOGETHER, worth

    groups = {effect.group: effect.plans for effect in effects}
    reasons = {habit.name: habit.kept_for for habit in habits}
    found = [worth(name, effects) for name in reasons]
    found.sort(key=lambda one: (not one.asked, -one.buys, one.habit))
    found += [one for one in (worth(TOGETHER, effects),) if one.plans]
    lines = [
        "# What habits buy",
        "",
        "Written by `autoshard bench habits --without all --markdown`: how much errors of steps, "
        "peaks and bytes on the wire grow where a habit is denied, as means over the plans of its "
        "compiler and chips; *buys* is the most that steps or peaks of one group lose. *Not "
        "exercised*: no rule asks about it in these plans, or these compilers have lost it. "
        "*Collectives*: it decides those. *Memory*: peaks of some group are said too small "
        f"without it, by {format_percent(LEAST_WORTH)} and more. *No*: less than "
        f"{format_percent(LEAST_WORTH)} in every group here. Why habits that are "
        "not judged by this stay says the last table."
        + " A habit was measured until it was worth it in one group."
        * enough,
        "",
        f"Plans: {', '.join(f'{count} of {name}' for name, count in groups.items())}.",
        "",
        f"Versions: {', '.join(f'{name} {said}' for name, said in versions())}.",
        "",
        "| habit | plans | changed | step | peak | wire | buys | in | worth it |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for one in found:
        cells = (
            one.habit, str(one.plans), str(one.changed),
            *(format_percent(getattr(one, word), "+.2f") for word in ERRORS),
            format_percent(one.buys, ".2f"), one.group,
            one.verdict if one.asked else "not exercised",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| habit | kept for | because |", "|---|---|---|"]
    kept = sorted((reason.kind, name, reason.why) for name, reason in reasons.items() if reason)
    lines += [f"| {name} | {kind} | {why} |" for kind, name, why in kept]
    return "\n".join(lines) + "\n"


def _size(place: Path) -> int:
    """Bytes of the plans of a group: small programs first, which decide about most habits."""
    return sum(file.stat().st_size for file in place.glob("*.json"))


def measured(
    folder: Path,
    names: Sequence[str],
    plans: int | None,
    workers: int | None,
    *,
    known: Path | None = None,
    enough: bool = False,
) -> tuple[list[Effect], list[str]]:
    """Effects of denying habits in every group, and what went wrong.

    Args:
      folder: where `bench fidelity --keep` kept its plans.
      names: of habits.
      plans: how many of each group, the best first; all by default.
      workers: processes at once; as many as there are cores by default.
      known: a file of earlier measurements, a line each, to which those made now are added.
      enough: leave a habit that is worth it in one group out of those that come later.
    """
    from autoshard.cli.rows import measure
    from autoshard.machine.compiler import installed_release
    from autoshard.study.worth import TOGETHER, Effect, worth

    places = [place for place in folder.iterdir() if (place / "question.json").exists()]
    places.sort(key=lambda place: (_size(place), place.name))
    lines = known.read_text().splitlines() if known and known.exists() else ()
    made = [json.loads(line) for line in lines]
    effects = [Effect(**row) for one in made for row in one["effects"]]
    errors: list[str] = []
    lock = threading.Lock()

    def ask(place: Path) -> None:
        release = json.loads((place / "question.json").read_text()).get("jaxlib")
        group = f"{place.name} of {release or installed_release()}"
        with lock:
            done = {name for one in made if one["group"] == group for name in one["habits"]}
            left = [name for name in names if name not in done]
            if enough:
                left = [n for n in left if worth(n, effects).verdict not in ("yes", "collectives")]
        if not left:
            return
        question = {"folder": str(place), "name": group, "habits": left, "plans": plans}
        answer = measure(str(GROUP), question)
        said = answer.get("error") or f"{answer['seconds']:.0f} s"
        print(f"autoshard: {place.name}: {said}", file=sys.stderr, flush=True)
        if "error" in answer:
            errors.append(f"{place.name}: {answer['error']}")
            return
        rows = [r for r in answer["effects"] if r["habit"] != TOGETHER or len(left) == len(names)]
        with lock:
            effects.extend(Effect(**row) for row in rows)
            if known is not None:
                with known.open("a", encoding="utf-8") as file:
                    print(json.dumps({"group": group, "habits": left, "effects": rows}), file=file)

    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        list(pool.map(ask, places))
    wanted = {*names, TOGETHER}
    return [effect for effect in effects if effect.habit in wanted], errors
