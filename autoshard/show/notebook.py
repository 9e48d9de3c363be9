"""Plans, programs, machines and sweeps that show themselves in a notebook.

A plan shows its page's verdict, schemes and layouts; a program its arguments and results; a machine
its numbers; a sweep its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SHOWN: dict[tuple[str, str], str] = {
    ("autoshard.plan.plan", "Plan"): "of_plan",
    ("autoshard.program.graph", "Program"): "of_program",
    ("autoshard.machine.machine", "Machine"): "of_machine",
    ("autoshard.study.whatif.table", "WhatIf"): "of_sweep",
}
"""What shows itself, by module and name, and the function below that makes HTML of it."""


def register(shell: Any) -> None:
    """Let an IPython `shell` show these as HTML; nothing is imported until one is shown."""
    html = shell.display_formatter.formatters["text/html"]
    for (module, name), function in SHOWN.items():
        html.for_type_by_name(module, name, _late(function))


def _late(function: str) -> Callable[[Any], str]:
    return lambda shown: globals()[function](shown)


def of_plan(plan: Any) -> str:
    """The verdict, the schemes and the layouts."""
    from autoshard.show.page import fragment

    return fragment(plan)


def of_program(program: Any) -> str:
    """What the program is, and its arguments and results with their sizes."""
    from autoshard.program.select import shown_path
    from autoshard.units import format_bytes

    rows = [
        (shown_path(program, value), str(program.values[value]), format_bytes(size))
        for value in (*program.inputs, *program.outputs)
        for size in (program.values[value].bytes,)
    ]
    return _page(str(program), ("argument or result", "type", "bytes"), rows)


def of_machine(machine: Any) -> str:
    """Every number of the machine in its unit."""
    from autoshard.machine.numbers import numbers, unit_of
    from autoshard.units import format_unit

    rows = [
        (one.path, one.name, format_unit(one.value, unit_of(one.path))) for one in numbers(machine)
    ]
    return _page(str(machine), ("number", "what it is", "value"), rows)


def of_sweep(sweep: Any) -> str:
    """The rows of the sweep, as its table of text has them."""
    from autoshard.show.document import style
    from autoshard.show.html import element

    return element("div", style(), element("main", element("pre", str(sweep))), class_="autoshard")


def _page(title: str, heads: tuple[str, str, str], rows: list[tuple[str, str, str]]) -> str:
    from autoshard.show.document import style
    from autoshard.show.html import Column, element, table

    columns = [Column(heads[0], code=True), Column(heads[1]), Column(heads[2], True)]
    shown = element("main", element("p", title), table(columns, rows))
    return element("div", style(), shown, class_="autoshard")
