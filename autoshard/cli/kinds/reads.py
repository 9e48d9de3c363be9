"""Which kinds of files each command reads, and how it refuses all others."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.cli.common import CommandError
from autoshard.cli.kinds.contents import Contents, contents
from autoshard.cli.kinds.files import kind_of


@dataclass(frozen=True, slots=True)
class Reads:
    """What an option takes.

    Attributes:
      noun: what other files are not, as `no plan`.
      kinds: what it takes, as `autoshard.cli.kinds.files` calls them.
      give: what to give in place of a text of no known kind; empty where any text may be meant.
    """

    noun: str
    kinds: tuple[str, ...]
    give: str = ""


PLAN = Reads("no plan for one mesh", ("a plan",), "what `autoshard search -o` wrote")
PLANS = Reads("no plan", ("a plan", "a plan for several meshes"), PLAN.give)
PRINTED = (
    "a plan",
    "a plan for several meshes",
    "a schedule",
    "a sweep",
    "an answer about serving",
    "an answer about ranges",
    "a front of memory and time",
    "verdicts",
    "a solution",
)
DRAWN = PRINTED[:5]
SHOWN = Reads("nothing that `autoshard show` prints", PRINTED, "what another command wrote with -o")
REPORTED = Reads("nothing that has a page", DRAWN, "what another command wrote with -o")
PROBLEM = Reads(
    "no choice problem", ("a choice problem",), "JSON in the format of the IOPDDL contest"
)
PROGRAM = Reads(
    "no program", ("Python",), "a built-in (see `autoshard programs`), or path/to/file.py:function"
)
MACHINE = Reads(
    "no machine file", ("a machine file",), "a name (see `autoshard machines`), or a TOML file"
)
KNOWN = Reads("no list of known schedules", (), "a JSON list of them")
EVERYWHERE = {
    "program": PROGRAM,
    "prefill": PROGRAM,
    "machine": MACHINE,
    "sweep": MACHINE,
    "meshes": Reads("no file of meshes", ("a file of meshes",), "a TOML file"),
    "require": Reads("no file of requirements", ("a file of requirements",), "a TOML file"),
    "prices": Reads("no file of prices", ("a file of prices",), "a TOML file"),
    "plan": PLAN,
    "start": PLAN,
    "against": PLAN,
    "verification": Reads("no verdicts", ("verdicts",), "what `autoshard verify --json` printed"),
    "robust": Reads(
        "no answer about ranges",
        ("an answer about ranges",),
        "what `autoshard robust --record` wrote",
    ),
}
"""What options of one name take in every command."""
HERE = {
    "verify": {"plan": PLANS},
    "explain": {"plan": PLANS, "against": PLANS},
    "show": {"plan": SHOWN},
    "report": {
        "plan": REPORTED,
        "program": Reads("neither a program nor a plan for one mesh", ("a plan", "Python")),
    },
    "calibrate": {
        "table": Reads("no table of times", ("a table of times", "a table"), "CSV, or JSON lines")
    },
    "solve": {"file": PROBLEM},
    "schedule": {
        "files": Reads(
            "no schedule problem",
            ("a schedule problem", "a list of schedule problems"),
            "JSON, as --help says",
        )
    },
    "bench iopddl": {"paths": PROBLEM},
    "bench solvers": {"problems": PROBLEM},
    "bench resolve": {"problems": PROBLEM},
    "bench measured": {
        "table": Reads("no table of runs", ("a table of runs", "a table"), "CSV with a run a row")
    },
    "bench served": {
        "table": Reads(
            "no table of served points",
            ("a table of served points", "a table"),
            "CSV with a point a row",
        )
    },
    "bench schedules": {
        "instances": Reads(
            "no list of schedule problems", ("a list of schedule problems",), "a JSON list of them"
        ),
        "peers": KNOWN,
        "peers_by_problem": KNOWN,
    },
    "bench habits": {"known": Reads("no file of earlier measurements", (), "one of JSON lines")},
    "bench all": {
        "compare": Reads(
            "no table of figures", ("a table of figures",), "what `autoshard bench all --csv` wrote"
        )
    },
}
"""What they take in one command, beside or in place of that."""


def reads(command: str) -> dict[str, Reads]:
    """What the options of a command read, by their names in the parsed line."""
    return {**EVERYWHERE, **HERE.get(command, {})}


def refuse_other_kinds(options: argparse.Namespace, command: str) -> None:
    """Refuse files of other kinds than a command reads.

    Args:
      options: of the command line.
      command: its words, as `bench all`.

    Raises:
      CommandError: says what the file is, and what it is for.
    """
    for name, wanted in reads(command).items():
        for path in _files(name, getattr(options, name, None)):
            _refuse(path, wanted)


def _refuse(path: str, wanted: Reads) -> None:
    held = contents(path)
    kind = kind_of(held)
    if kind is not None and kind.what not in wanted.kinds:
        raise CommandError(f"{path!r} holds {kind}, and {wanted.noun}; {kind.use}")
    if kind is None and held is not None and wanted.give and _is_prose(held):
        begins = held.text.strip().partition("\n")[0][:40]
        text = f"holds a text that begins with {begins!r}" if begins else "is empty"
        raise CommandError(f"{path!r} {text}, and {wanted.noun}; give {wanted.give}")


def _is_prose(held: Contents) -> bool:
    """Whether it is neither TOML nor JSON, not even damaged: of these, readers name the line."""
    return not held.path.endswith(".toml") and not held.text.lstrip().startswith(("{", "["))


def _files(name: str, given: object) -> Iterator[str]:
    """The files among what an option was given."""
    words = list(given) if isinstance(given, list | tuple) else [given]
    if name == "sweep":
        words = [part for word in words for part in str(word).partition("=")[2].split(",")]
    for one in words:
        if isinstance(one, str) and os.path.isfile(one):
            yield one
