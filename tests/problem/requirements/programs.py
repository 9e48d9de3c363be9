"""A small train step, and the search for its plans on eight slow chips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.plan.plan import Plan
from autoshard.problem.requirements.records import Requirement
from autoshard.program.trace import Program, trace
from autoshard.search.search import search
from tests.helpers import toy_machine

MESH = {"data": 2, "model": 4}


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def train_step(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        with jax.named_scope("mlp"):
            hidden = jax.nn.gelu(batch["inputs"] @ weights["up"])
            out = hidden @ weights["down"]
        return jnp.mean((out - batch["targets"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)


def train_program() -> Program:
    weights = {"up": array(256, 1024), "down": array(1024, 256)}
    batch = {"inputs": array(64, 256), "targets": array(64, 256)}
    return trace(train_step, weights, batch, donate_argnums=0)


def plan_of(
    program: Program, *requirements: Requirement | str, chips: int = 8, **options: Any
) -> Plan:
    """The plan of a program on eight slow chips under requirements."""
    given: dict[str, Any] = {"mesh": MESH, "baselines": False, "gap": 0.0, **options}
    return search(program, toy_machine(chips), requirements=requirements, **given)


def spec(plan: Plan, path: str, side: str = "inputs") -> tuple[Any, ...]:
    return tuple(plan.specs[side][path])


def kinds(plan: Plan, axis: str = "") -> dict[str, int]:
    """How many collectives of each kind run over an axis, or over any."""
    counts: dict[str, int] = {}
    for move in plan.moves:
        if not axis or axis in move.axes:
            counts[move.kind] = counts.get(move.kind, 0) + move.count
    return counts


def kept(plan: Plan) -> Sequence[bool]:
    return [one["kept"] for one in plan.requirements]
