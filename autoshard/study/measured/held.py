"""What a device holds under a plan, by the parts of a decoder: weights, and what layers keep."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from autoshard.plan.plan import Plan
from autoshard.program.trace import Program

ENDS = ("embed", "unembed", "loss", "further")
KINDS = ("dense_layers", "local_layers", "state_layers", "attention_layers", "layers")


def place(scope: str) -> tuple[str, str]:
    """The part and kind of a scope, as `transpose(jvp(layers))/ffn`; ("", "once") for others."""
    words = re.findall(r"\w+", scope.split("/")[0])
    part = next((word for word in words if word in (*KINDS, *ENDS)), "")
    if not part:
        return "", "once"
    return part, "B" if "transpose" in words else "F"


def kept_bytes(program: Program, plan: Plan, held_bytes: object) -> Iterator[tuple[str, float]]:
    """What the forward pass stacks for the backward pass, by part, in bytes of a device."""
    for op in program.ops:
        part, kind = place(op.scope)
        if op.primitive != "scan_stack" or kind != "F":
            continue
        for value in op.outputs:
            yield part, _held(plan, value, held_bytes)


def weight_bytes(program: Program, plan: Plan, held_bytes: object) -> Iterator[tuple[str, float]]:
    """Weights by part, in bytes of a device."""
    names = {"embedding": "embed", "unembedding": "unembed", "final_norm": "unembed"}
    for value in program.inputs:
        words = re.findall(r"\w+", program.values[value].path)
        if words[:1] == ["0"]:
            part = str(words[1])
            yield names.get(part, part), _held(plan, value, held_bytes)


def _held(plan: Plan, value: int, held_bytes: object) -> float:
    layout = plan.decisions.stored[value]
    return float(held_bytes(value, np.array(layout))) if layout is not None else 0.0  # type: ignore[operator]
