"""The layouts of a plan's inputs and outputs, folded for reading."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.plan.plan import Plan
from autoshard.plan.text.trees import Leaf, Lines, fold
from autoshard.program.select import named_path
from autoshard.program.subaxes import joined
from autoshard.program.trace import Program
from autoshard.units import format_percent


@dataclass(frozen=True, slots=True)
class FoldedLayouts:
    """The layouts of a plan's inputs or outputs, folded for reading.

    Attributes:
      noun: "input" or "output".
      lines: of the folded tree.
      examples: by the text of a layout, the tree path of an array that has it.
    """

    noun: str
    lines: Lines
    examples: Mapping[str, str]


def folded_layouts(plan: Plan) -> tuple[FoldedLayouts, ...]:
    """The layouts of inputs and of outputs; subtrees that were met before are one line."""
    sizes = dict(zip(plan.mesh.names, plan.mesh.sizes, strict=True))
    seen: dict[object, str] = {}
    blocks = []
    for side, noun in (("inputs", "input"), ("outputs", "output")):
        types = plan.types.get(side, {})
        leaves = {
            path: _leaf(types.get(path), tuple(spec), sizes)
            for path, spec in plan.specs[side].items()
        }
        examples = {leaf.text: path for path, leaf in reversed(leaves.items())}
        names = plan.argument_names if side == "inputs" else ()
        named = {named_path(path, names): leaf for path, leaf in leaves.items()}
        blocks.append(FoldedLayouts(noun, fold(named, seen, origin=noun), examples))
    return tuple(blocks)


def layouts_in_short(plan: Plan, program: Program) -> str:
    """How the largest inputs lie, by layout: `83 % [None, x, y], 17 % [x]`."""
    specs = plan.specs["inputs"]
    sizes: dict[str, float] = {}
    for value in program.inputs:
        record = program.values[value]
        text = ", ".join(_entry(entry) for entry in specs[record.path])
        sizes[f"[{text}]"] = sizes.get(f"[{text}]", 0.0) + record.bytes
    total = sum(sizes.values()) or 1.0
    largest = sorted(sizes.items(), key=lambda pair: -pair[1])[:3]
    return ", ".join(f"{format_percent(size / total, '.0f')} {text}" for text, size in largest)


def _entry(entry: Any) -> str:
    if entry is None:
        return "-"
    return entry if isinstance(entry, str) else "*".join(entry)


def _leaf(kind: str | None, spec: Sequence[object], sizes: Mapping[str, int]) -> Leaf:
    if kind is None:
        return Leaf(str(spec), 0.0)
    match = re.fullmatch(r"(\D*)(\d*)(.*?)\[(.*)\]", kind)
    if match is None:
        return Leaf(f"{kind} {spec}", 0.0)
    letters, bits, rest, shape = match.groups()
    dimensions = [int(size) for size in shape.split(",") if size.strip()]
    shards = 1
    parts = []
    for number, size in enumerate(dimensions):
        entry = spec[number] if number < len(spec) else None
        axes = (entry,) if isinstance(entry, str) else tuple(entry) if entry else ()  # type: ignore[arg-type]
        shards *= math.prod(sizes[axis] for axis in axes)
        shown = joined(axes, tuple(sizes))
        suffix = "" if not axes else f"@{shown[0]}" if len(shown) == 1 else f"@({','.join(shown)})"
        parts.append(f"{size}{suffix}")
    itemsize = int(bits) / 8 if bits else 1.0
    return Leaf(
        f"{letters}{bits}{rest}[{', '.join(parts)}]", math.prod(dimensions) * itemsize / shards
    )
