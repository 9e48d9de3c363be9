"""`python -m tests.corpus.make [NAME ...]`: write the corpus anew, or the plans of these names.

A kept plan is where the search starts, and stays where nothing better is found, so that what
differs afterwards is what really changed. Files that belong to no case are deleted.
"""

from __future__ import annotations

import argparse
import sys

from autoshard.plan.consistency import InconsistentPlanError
from autoshard.plan.plan import Plan
from autoshard.plan.same_program import renumbered
from autoshard.program.fingerprint import is_of
from autoshard.units import format_gap, format_seconds
from tests.corpus.cases import CASES, Case
from tests.corpus.kept import FOLDER, SAME, kept, path_of, priced, read, solve, write


def main(words: list[str]) -> int:
    """Write the plans that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.make", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="parts of names; default: all")
    parser.add_argument("--time-limit", metavar="S", type=float, default=60.0, help="for each")
    options = parser.parse_args(words)
    chosen = [
        case
        for case in CASES
        if not options.names or any(name in case.name for name in options.names)
    ]
    if not chosen:
        parser.error(f"no case has a name with {' or '.join(options.names)} in it")
    for case in chosen:
        write(case, kept(case, _plan(case, options.time_limit)))
    for stale in set(FOLDER.glob("*.json")) - {path_of(case) for case in CASES}:
        stale.unlink()
        print(f"{stale.name}: deleted, there is no such case")
    return 0


def _plan(case: Case, time_limit: float) -> Plan:
    before = _before(case)
    plan = solve(case, time_limit=time_limit, start=before)
    step, bound = plan.estimate.step_seconds, plan.proof.bound
    news = "new"
    if before is not None:
        old = before.estimate.step_seconds
        news = f"was {format_seconds(old)}"
        fits = before.estimate.peak_bytes <= before.memory_limit
        if fits and step >= old * (1 - SAME):
            plan, news = priced(case, before.decisions, bound), "the plan stays"
    gap = format_gap(plan.proof.gap)
    print(f"{case.name}: {format_seconds(step)}, gap {gap}; {news}", flush=True)
    if case.solved and plan.proof.gap > SAME:
        raise SystemExit(
            f"{case.name} is to be solved again by the test, but was not solved to the end in "
            f"{time_limit:g} s: give more, or set solved=False in tests/corpus/cases.py"
        )
    return plan


def _before(case: Case) -> Plan | None:
    """The kept plan at the prices of today, if it is one of the program of today."""
    if not path_of(case).exists():
        return None
    old = read(case)
    program, _ = case.build()
    if not is_of(old.fingerprint, program):
        return None
    try:
        return priced(case, renumbered(old.decoded(), program))
    except InconsistentPlanError:
        return None  # the rules of some operation have changed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
