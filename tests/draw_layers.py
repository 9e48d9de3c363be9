"""`python -m tests.draw_layers [FILE]`: the packages as a picture, drawn from the imports.

A box a package, the lowest layer at the bottom; an arrow from a package to each that it imports,
as wide as there are modules that do. What follows from other arrows is left out: where a package
imports another one through a third, the way through the third is drawn. Without a file the picture
goes to `docs/architecture.svg`.
"""

from __future__ import annotations

import sys
from collections import Counter
from html import escape
from pathlib import Path

import networkx as nx

from tests.test_imports import LAYERS, MODULES, imports, package_of

WIDTH, BOX, HIGH, GAP = 1000, 150, 34, 40
LEAVES = ("units", "files", "trace_events")
COLORS = {"xla": "#fde9c8", "compiler": "#d8ecd8"}
"""Belief and truth; all else is plain."""


def packages() -> list[str]:
    """The packages, lowest first."""
    return [name for layer in LAYERS for name in layer if name not in (*LEAVES, "__main__")]


def edges() -> Counter[tuple[str, str]]:
    """How many modules of a package import some of another."""
    found: Counter[tuple[str, str]] = Counter()
    shown = set(packages())
    for module, file in MODULES.items():
        if module == "autoshard" or package_of(module) not in shown:
            continue
        others = {package_of(name) for _, name in imports(file) if name.startswith("autoshard.")}
        found.update((package_of(module), other) for other in others & shown - {package_of(module)})
    return found


def drawn() -> str:
    """The picture, as SVG."""
    names, every = packages(), edges()
    graph = nx.DiGraph(every.keys())
    graph.add_nodes_from(names)
    kept = nx.transitive_reduction(graph).edges
    sizes = Counter(package_of(module) for module in MODULES if module != "autoshard")
    height = len(names) * (HIGH + GAP)
    top = {name: height - (rank + 1) * (HIGH + GAP) + GAP / 2 for rank, name in enumerate(names)}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="14">',
        "<defs><marker id='to' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' "
        "markerHeight='7' markerUnits='userSpaceOnUse' orient='auto'>"
        "<path d='M0 0L10 5L0 10z' fill='#667'/></marker></defs>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    left = 90
    for (one, other), count in sorted(every.items()):
        if (one, other) not in kept:
            continue
        rank, below = names.index(one), names.index(other)
        start, end = top[one] + HIGH, top[other]
        if rank - below == 1:
            path = f"M{left + BOX / 2} {start}L{left + BOX / 2} {end}"
        else:
            bend = 22 * (rank - below)
            side = left + BOX
            path = f"M{side} {top[one] + HIGH / 2}C{side + bend} {start} {side + bend} {end} "
            path += f"{side} {top[other] + HIGH / 2}"
        width = min(1 + count / 8, 4)
        lines.append(
            f'<path d="{path}" fill="none" stroke="#667" stroke-width="{width:.1f}" '
            f'marker-end="url(#to)"><title>{count} modules of {one} import {other}</title></path>'
        )
    for name in names:
        color = COLORS.get(name, "#e8eef8")
        lines.append(
            f'<rect x="{left}" y="{top[name]}" width="{BOX}" height="{HIGH}" rx="6" '
            f'fill="{color}" stroke="#667"/>'
            f'<text x="{left + BOX / 2}" y="{top[name] + 22}" text-anchor="middle">{name}</text>'
            f'<text x="350" y="{top[name] + 22}" fill="#333">{escape(sentence(name))}</text>'
            f'<text x="{left - 12}" y="{top[name] + 22}" text-anchor="end" fill="#889">'
            f"{sizes[name]}</text>"
        )
    return "\n".join([*lines, "</svg>", ""])


def sentence(name: str) -> str:
    """What a package says of itself: the first sentence of its docstring."""
    import ast

    text = ast.get_docstring(ast.parse(MODULES[f"autoshard.{name}"].read_text())) or ""
    first = text.split("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip(".")
    return first if len(first) <= 92 else first[:91] + "…"


if __name__ == "__main__":
    place = Path(__file__).parent.parent / "docs" / "architecture.svg"
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else place
    target.parent.mkdir(exist_ok=True)
    target.write_text(drawn())
    print(f"wrote {target}")
