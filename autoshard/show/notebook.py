"""Plans, programs, machines and sweeps that show themselves in a notebook.

What has a page shows the first of it: a plan its verdict, schemes and layouts, or its schedule; a
sweep and an answer about serving their verdict, picture and rows. A program shows its arguments and
results, a machine its numbers, a front of memory and time its plans; an explanation its text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SHOWN: dict[tuple[str, str], str] = {
    ("autoshard.plan.plan", "Plan"): "of_plan",
    ("autoshard.program.graph", "Program"): "of_program",
    ("autoshard.machine.machine", "Machine"): "of_machine",
    ("autoshard.study.whatif.table", "WhatIf"): "of_sweep",
    ("autoshard.study.whatif.served", "Serving"): "of_serving",
    ("autoshard.study.frontier", "Frontier"): "of_front",
    ("autoshard.study.robust.record", "Robust"): "of_ranges",
    ("autoshard.search.meshes.plan", "PipelinePlan"): "of_pipeline",
    ("autoshard.search.explanation", "Explanation"): "of_text",
    ("autoshard.search.explanation", "Difference"): "of_text",
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
    from autoshard.show.page import plan_fragment

    return plan_fragment(plan)


def of_pipeline(plan: Any) -> str:
    """The verdict, the schedule and the meshes."""
    from autoshard.show.pipeline.page import pipeline_fragment

    return pipeline_fragment(plan)


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
    """The verdict, the picture and the rows."""
    from autoshard.show.sweep.page import sweep_fragment

    return sweep_fragment(sweep)


def of_serving(found: Any) -> str:
    """The verdict, the curves, the rows and the largest batches."""
    from autoshard.show.sweep.serving_page import serving_fragment

    return serving_fragment(found)


def of_front(front: Any) -> str:
    """Every plan of the front, and within what no plan fits."""
    from autoshard.show.document import fragment
    from autoshard.show.html import Column, element, table

    first = front.plans[0]
    heads, *rows = front.rows()
    columns = [Column(head, right) for head, right in zip(heads, front.ALIGNED_RIGHT, strict=True)]
    said = [element("p", one, class_="soft") for one in front.limits()]
    title = element("h1", f"{first.program} on {first.machine}")
    return fragment(title, table(columns, rows), *said)


def of_ranges(found: Any) -> str:
    """The answer in words, by number and by plan."""
    from autoshard.show.document import fragment
    from autoshard.show.html import element
    from autoshard.show.robust_section import robust_section

    title = element("h1", f"{found.program} on {found.machine}")
    return fragment(title, robust_section(found))


def of_text(shown: Any) -> str:
    """What it is printed as."""
    from autoshard.show.document import fragment
    from autoshard.show.html import element

    return fragment(element("pre", str(shown)))


def _page(title: str, heads: tuple[str, str, str], rows: list[tuple[str, str, str]]) -> str:
    from autoshard.show.document import fragment
    from autoshard.show.html import Column, element, table

    columns = [Column(heads[0], code=True), Column(heads[1]), Column(heads[2], True)]
    return fragment(element("p", title), table(columns, rows))
