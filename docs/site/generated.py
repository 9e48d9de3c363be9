"""What of the pages is made from the code, as the site is built: a hook of MkDocs.

A page says `<!-- commands -->`, `<!-- habits -->`, `<!-- keys of machine files -->`,
`<!-- text of MODULE -->` or `<!-- notebook FILE -->` where it goes.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this with the text of every page."""
    for mark, made in MADE.items():
        if mark in markdown:
            markdown = markdown.replace(mark, "\n".join(made()))
    markdown = re.sub(r"<!-- notebook (\S+) -->", lambda found: notebook_of(found[1]), markdown)
    return re.sub(r"<!-- text of (\S+) -->", lambda found: text_of(found[1]), markdown)


def notebook_of(file: str) -> str:
    """The cells of a notebook of `docs/` with what they showed when it was last run."""
    written = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    parts = []
    for cell in json.loads(written)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub("^#", "##", source))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = output.get("data", {"text/plain": output.get("text", [])})
            if "text/html" in shown:
                # Markdown leaves HTML alone up to an empty line.
                parts.append(re.sub(r"\n\s*\n", "\n", "".join(shown["text/html"])))
            else:
                parts.append(f"```text\n{''.join(shown['text/plain'])}```")
    return "\n\n".join(parts)


def text_of(module: str) -> str:
    """What a module says of itself, as it is laid out in its file."""
    said = inspect.getdoc(importlib.import_module(module)) or ""
    first, _, rest = said.partition("\n\n")
    return f"{first}\n\n```text\n{rest}\n```\n"


def commands() -> Iterator[str]:
    """Every command with its arguments, from its parser."""
    from autoshard.cli.main import parser_of_commands

    yield from _parsers(parser_of_commands(), level=2)


def _parsers(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for name, one in action.choices.items():
            yield f"\n{'#' * level} {name}\n"
            yield f"{one.description}\n" if one.description else ""
            yield f"```text\n{one.format_usage().removeprefix('usage: ').strip()}\n```\n"
            yield from _arguments(one)
            if one.epilog:
                yield f"```text\n{one.epilog.strip()}\n```\n"
            yield from _parsers(one, level + 1)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = [
        (_name(action), (action.help or "") % {**vars(action), "prog": parser.prog})
        for action in parser._actions
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))
        and action.help != argparse.SUPPRESS
    ]
    if rows:
        yield from table(("argument", "meaning"), rows)
        yield ""


def _name(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    words = ", ".join(action.option_strings)
    takes = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    return (
        f"`{words} {value}`" if words and takes and value else f"`{words or value or action.dest}`"
    )


def habits() -> Iterator[str]:
    """Every habit, by compiler."""
    from autoshard.xla import HABITS

    for compiler in dict.fromkeys(habit.compiler for habit in HABITS):
        yield f"\n## {compiler}\n"
        rows = [
            (
                f"`{habit.name}`",
                habit.claim,
                habit.source,
                ", ".join(habit.seen),
                "yes" if habit.probe is not None else "no",
            )
            for habit in HABITS
            if habit.compiler == compiler
        ]
        yield from table(("habit", "claim", "source", "seen with", "probe"), rows)


def machine_keys() -> Iterator[str]:
    """Every key of a machine file, by table."""
    from autoshard.machine.file import KEYS

    for where, keys in KEYS.items():
        yield f"\n### {where}\n"
        rows = [
            (f"`{name}`", key.kind, "yes" if key.required else "no", _range(key))
            for name, key in keys.items()
        ]
        yield from table(("key", "holds", "must be there", "from, to"), rows)


def _range(key: Any) -> str:
    if key.kind not in ("number", "integer"):
        return ""
    return f"{key.least:g} to {key.most:g}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(text: str) -> str:
    text = text if text.startswith("`") else escape(text, quote=False)
    return text.replace("|", r"\|").replace("\n", " ")


FILES = {
    "Plan": ("search -o", "autoshard.plan.written:WrittenPlan"),
    "Plan for several meshes": (
        "search --meshes -o",
        "autoshard.search.meshes.written:WrittenPipeline",
    ),
    "Sweep": ("whatif -o", "autoshard.show.sweep.file:WrittenSweep"),
    "Serving": ("serving -o", "autoshard.show.sweep.serving_file:WrittenServing"),
    "Ranges": ("robust --record", "autoshard.study.robust.record:WrittenRobust"),
    "Front of memory and time": ("frontier -o", "autoshard.study.frontier:WrittenFrontier"),
    "Schedule": (
        "schedule -o",
        "autoshard.solve.schedule.optimise.outcome_json:WrittenSchedule",
    ),
    "Verdicts": ("verify --json", "autoshard.cli.common:WrittenVerdicts"),
}
"""By what a file is: the command that writes it, and the record that reads it."""


def schemas() -> Iterator[str]:
    """The JSON schema of every file, from the record that reads it."""
    import json

    import msgspec

    for name, (command, place) in FILES.items():
        module, _, record = place.partition(":")
        schema = msgspec.json.schema(getattr(importlib.import_module(module), record))
        yield f"\n## {name}\n\nWritten by `autoshard {command}`.\n"
        yield f"```json\n{json.dumps(schema, indent=1)}\n```\n"


MADE = {
    "<!-- schemas of files -->": schemas,
    "<!-- commands -->": commands,
    "<!-- habits -->": habits,
    "<!-- keys of machine files -->": machine_keys,
}
