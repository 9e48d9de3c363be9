"""What a file is that a command is given: every kind that some command writes or reads.

Commands write some thirty kinds of files and read half of them. Whoever gives one to a command
that reads another is told what it is, which command made it, and what it is for, before any work
begins: `refuse_other_kinds` looks at each file that the command line names. A file of no kind that
is known here is left to what reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from autoshard.cli.kinds.contents import Contents, contents


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file.

    Attributes:
      what: it is, as `a sweep`.
      made: the command that writes it, as `autoshard whatif`; empty where a person does.
      use: what it is for, as a sentence's second half.
      is_one: whether a file's contents are of this kind.
    """

    what: str
    made: str
    use: str
    is_one: Callable[[Contents], bool]

    def __str__(self) -> str:
        return f"{self.what}, which `{self.made}` writes" if self.made else self.what


def _own(kind: str) -> Callable[[Contents], bool]:
    return lambda held: held.own == f"autoshard {kind}"


def _keys(*keys: str) -> Callable[[Contents], bool]:
    return lambda held: held.keys.issuperset(keys)


def _rows(*keys: str) -> Callable[[Contents], bool]:
    return lambda held: held.rows.issuperset(keys)


def _columns(*names: str) -> Callable[[Contents], bool]:
    return lambda held: held.columns.issuperset(names)


def _line(pattern: str) -> Callable[[Contents], bool]:
    """Whether a line of a text that is neither JSON nor a table matches."""
    match = re.compile(pattern, re.MULTILINE).search
    return lambda held: not held.keys and not held.rows and match(held.text) is not None


def _is_sweep(held: Contents) -> bool:
    if "rows" in held.keys:
        return {"machine", "limit_bytes"} <= held.rows or "objective" in held.keys
    return {"chip", "machine", "limit_bytes"} <= held.columns


PAGE = "open it in a browser"
SHOWN = "`autoshard show` prints it"
MACHINE = "--machine of most commands takes it, and `autoshard machines` prints it"
KINDS = (
    Kind(
        "Python",
        "",
        "name a function of it where PROGRAM stands, as file.py:function",
        lambda held: held.path.endswith(".py"),
    ),
    Kind("a page", "autoshard report -o", PAGE, _line(r"\A\s*<!(?i:doctype html)")),
    Kind("a drawing", "autoshard schedule --svg", PAGE, _line(r"\A\s*(<\?xml[^>]*>\s*)?<svg")),
    Kind(
        "a plan for several meshes",
        "autoshard search --meshes",
        "`autoshard verify`, `explain`, `report` and `show` read it",
        _own("plan for several meshes"),
    ),
    Kind("a schedule", "autoshard schedule", SHOWN, _own("schedule")),
    Kind("an answer about serving", "autoshard serving", SHOWN, _keys("serving", "rows")),
    Kind("a sweep", "autoshard whatif", SHOWN, _is_sweep),
    Kind("an answer about ranges", "autoshard robust", SHOWN, _keys("robust")),
    Kind("a front of memory and time", "autoshard frontier", SHOWN, _keys("points")),
    Kind("verdicts", "autoshard verify --json", SHOWN, _keys("verdicts")),
    Kind("a solution", "autoshard solve", SHOWN, _keys("choices", "objective", "peak_usage")),
    Kind(
        "a plan",
        "autoshard search",
        "`autoshard show`, `verify`, `explain`, `annotate` and `report` read it",
        _keys("schema_version", "mesh"),
    ),
    Kind(
        "a trace",
        "autoshard report --trace",
        "open it in Perfetto (https://ui.perfetto.dev) or chrome://tracing",
        _keys("traceEvents"),
    ),
    Kind(
        "a graph",
        "autoshard report --model-explorer",
        "open it in Model Explorer",
        _keys("graphs"),
    ),
    Kind(
        "times of a graph's nodes",
        "autoshard report --node-data",
        "Model Explorer reads it beside the graph",
        lambda held: len(held.keys) == 1 and '"results"' in held.text[:1000],
    ),
    Kind(
        "a list of layouts",
        "autoshard report --shardings",
        "jax.sharding.NamedSharding takes them",
        _keys("mesh", "inputs", "outputs"),
    ),
    Kind(
        "logical axis rules",
        "autoshard report --rules",
        "Flax and MaxText take them",
        _line(r"^logical_axis_rules:"),
    ),
    Kind(
        "a framework's own file",
        "autoshard search --as",
        "give it to that framework",
        _line(r"^# autoshard:"),
    ),
    Kind(
        "an answer about a plan",
        "autoshard check --json",
        "its `plan` is a plan",
        _keys("fits", "plan"),
    ),
    Kind(
        "a list of lines",
        "autoshard annotate --json",
        "copy them into the program",
        _keys("lines", "of"),
    ),
    Kind(
        "an explanation",
        "autoshard explain --json",
        "without --json it is printed to be read",
        lambda held: bool({"dearest", "answers", "differences"} & held.keys),
    ),
    Kind(
        "what a calibration came to",
        "autoshard calibrate --json",
        "-o writes the machine file, which other commands read",
        _keys("parameters", "kinds"),
    ),
    Kind(
        "a machine's numbers",
        "autoshard machines --json",
        "give the machine's name",
        _keys("machine", "numbers"),
    ),
    Kind("what was written", "autoshard report --json", "give one of those files", _keys("wrote")),
    Kind(
        "a completion script as JSON",
        "autoshard completion --json",
        "the shell reads it without --json",
        _keys("scripts"),
    ),
    Kind(
        "rows of a benchmark",
        "autoshard bench --json",
        "they are for other programs",
        _keys("rows"),
    ),
    Kind(
        "the list of machines",
        "autoshard machines --json",
        "give a name of it",
        _rows("machine", "google_name"),
    ),
    Kind(
        "the list of programs",
        "autoshard programs --json",
        "give a name of it",
        _rows("program", "about"),
    ),
    Kind("a choice problem", "", "`autoshard solve` solves it", _keys("problem")),
    Kind("a schedule problem", "", "`autoshard schedule` solves it", _keys("p", "m", "F", "B")),
    Kind(
        "a list of schedule problems",
        "",
        "`autoshard bench schedules` solves them",
        _rows("p", "m", "F", "B"),
    ),
    Kind("a machine file", "autoshard calibrate -o", MACHINE, _line(r"^\[chip\]")),
    Kind(
        "a file of requirements",
        "",
        "--require takes it",
        _line(r"^requirements\s*=|^\[\[logical\]\]"),
    ),
    Kind("a file of prices", "", "--prices takes it", _line(r"^(chip_hour|watts)\s*=")),
    Kind("a file of meshes", "", "--meshes takes it", _line(r"^meshes\s*=")),
    Kind(
        "a table of times",
        "autoshard calibrate --table",
        "`autoshard calibrate` fits a machine to it",
        lambda held: {"kind", "seconds"} <= held.columns | held.keys,
    ),
    Kind(
        "what numbers decide",
        "autoshard robust --csv",
        "`autoshard robust --record` writes what `autoshard show` prints",
        _columns("path", "regret_if_known"),
    ),
    Kind(
        "a table of figures",
        "autoshard bench all --csv",
        "`autoshard bench all --compare` reads it",
        _columns("part", "figure", "value"),
    ),
    Kind(
        "a table of served points",
        "",
        "`autoshard bench served` bounds them",
        _columns("id", "model", "chip", "chips", "batch", "input", "output"),
    ),
    Kind(
        "a table of runs",
        "",
        "`autoshard bench measured` predicts them",
        _columns("id", "model", "chip", "chips"),
    ),
    Kind(
        "a table",
        "autoshard bench --csv",
        "it is for spreadsheets",
        lambda held: bool(held.columns),
    ),
    Kind(
        "a page of results",
        "autoshard bench --markdown",
        "it is to be read",
        lambda held: held.text.startswith("# ") and "`autoshard bench " in held.text,
    ),
    Kind(
        "a completion script",
        "autoshard completion",
        "the shell reads it",
        _line(r"autoshard completion --of"),
    ),
)
"""Every kind; the first that fits counts."""


def kind_of(held: Contents | None) -> Kind | None:
    """The kind of a file, or None if it is none that is known here."""
    return None if held is None else next((kind for kind in KINDS if kind.is_one(held)), None)


def kind_of_file(path: str) -> Kind | None:
    """The kind of the file at a path, or None."""
    return kind_of(contents(path))
