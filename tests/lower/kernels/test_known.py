"""Bare calls of known library kernels, cut: parts compute what the whole does."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard import compat
from autoshard.lower.kernels.ruled import run_closed
from autoshard.lower.verify import verify
from autoshard.program.bodies import all_equations, run_equations
from autoshard.program.trace import trace
from autoshard.program.vocabulary import INLINED
from autoshard.search.search import search
from tests.helpers import toy_machine
from tests.lower.parts.one_op import OneOp
from tests.program.kernels.known.functions import CALLS, ENDS, GROUPED, PAGED, decode, products


def ruled_calls(jaxpr: Any, arrays: Any) -> list[tuple[Any, list[Any], Any]]:
    """The calls with rules in a traced step: equation, operands and result."""
    found: list[tuple[Any, list[Any], Any]] = []

    def run(equation: Any, operands: list[Any]) -> Any:
        if equation.primitive.name in INLINED:
            body, consts = compat.called_jaxpr(equation)
            return run_equations(body, consts, operands, run)
        if equation.primitive.name != compat.RULED:
            return compat.bind_equation(equation, operands)
        closed = equation.params["call_jaxpr"]
        results = jax.jit(lambda *given: run_closed(closed, given))(*operands)
        found.append((equation, operands, results[0]))
        return results

    run_equations(jaxpr.jaxpr, jaxpr.consts, arrays, run)
    return found


def only_call(fn: Any, arrays: Any) -> Any:
    """What applies the only call with a rule of a step to its operands."""
    (call,) = (
        one
        for one in all_equations(trace(fn, *arrays).jaxpr.jaxpr)
        if one.primitive.name == compat.RULED
    )
    return lambda *given: compat.bind_equation(call, given)


def differences(
    jaxpr: Any, arrays: Any, mesh: tuple[int, ...], every: int, rows: int | None = None
) -> list[float]:
    """By how much results on parts differ from the whole, for each way to cut a call.

    Args:
      rows: of results, which are compared; all by default.
    """
    found = []
    for equation, operands, expected in ruled_calls(jaxpr, arrays):
        one = OneOp(
            lambda *given, e=equation: compat.bind_equation(e, given), operands, compat.RULED
        )
        ways = list(one.assignments(mesh))
        for assignment in ways[::every]:
            result, whole = (
                np.asarray(out, np.float32)[:rows]
                for out in (one.on_parts(assignment, mesh), expected)
            )
            found.append(float(np.abs(result - whole).max() / np.abs(whole).max()))
    return found


def test_products_cut_by_rows_and_groups_are_ragged_products() -> None:
    rows, matrices, sizes = GROUPED
    given = [rows, matrices, sizes, jnp.arange(4, dtype=jnp.int32), jnp.arange(8, dtype=jnp.int32)]
    one = OneOp(only_call(products, GROUPED), given, compat.RULED)
    m, g = (one.rule.operands[k][0][0] for k in (0, 1))
    found = one.on_parts((m, g), (2, 2))
    np.testing.assert_allclose(found, jax.lax.ragged_dot(*GROUPED), rtol=1e-3, atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "mesh", "every", "ways"),
    [
        ("gmm", (2, 2), 1, 23),
        ("tgmm", (2, 2), 2, 24),
        ("tgmm", (2, 2, 2), 20, 10),
        ("paged_attention", (2, 2), 1, 15),
        ("paged_attention", (2, 2, 2), 6, 9),
        ("ragged_paged_attention", (2, 2), 1, 8),
        ("ragged_paged_attention", (8,), 1, 2),
    ],
)
def test_ways_to_cut_a_call_compute_what_the_whole_does(
    name: str, mesh: tuple[int, ...], every: int, ways: int
) -> None:
    fn, arrays = CALLS[name]
    # Nobody says what stands behind the last token.
    rows = int(ENDS[4]) if name == "ragged_paged_attention" else None
    found = differences(trace(fn, *arrays).jaxpr, arrays, mesh, every, rows)
    assert len(found) == ways
    assert max(found) < 1e-4


@pytest.mark.long
def test_paged_attention_reads_the_pages_of_its_sequences() -> None:
    ((_, _, out),) = ruled_calls(trace(decode, *PAGED).jaxpr, PAGED)
    queries, keys, values, lengths, pages = map(np.asarray, PAGED)
    found = np.asarray(out).reshape(queries.shape)
    for row, length in enumerate(lengths):
        for head in range(queries.shape[1]):
            own = head * keys.shape[0] // queries.shape[1]
            seen = [one[own, pages[row]].reshape(-1, 128)[:length] for one in (keys, values)]
            scores = np.exp(seen[0] @ queries[row, head])
            expected = scores @ seen[1] / scores.sum()
            np.testing.assert_allclose(found[row, head], expected, rtol=2e-2, atol=1e-2)


def update(matrices: Any, rows: Any, sizes: Any) -> Any:
    """A step of descent, of rematerialised products."""
    product = jax.checkpoint(lambda given: products(rows, given, sizes))
    return matrices - 0.1 * jax.grad(lambda given: (product(given) ** 2).sum())(matrices)


STEPS = [
    (update, (GROUPED[1], GROUPED[0], GROUPED[2]), ["pin matrices [x, ...]"], {"x": 8}),
    (products, GROUPED, ["pin matrices [x, None, y]"], {"x": 4, "y": 2}),
    (products, GROUPED, ["pin rows [x, ...]"], {"x": 4, "y": 2}),
    (decode, PAGED, ["pin queries [x, ...]"], {"x": 4, "y": 2}),
]


@pytest.mark.long
@pytest.mark.parametrize(("fn", "arrays", "pins", "axes"), STEPS)
def test_plans_of_bare_calls_hold_before_all_judges(fn: Any, arrays: Any, pins: Any, axes: Any):
    program = trace(fn, *arrays)
    machine = toy_machine(int(np.prod(list(axes.values()))))
    plan = search(program, machine, mesh=axes, requirements=pins, time_limit=20)
    calls = [op for op in program.ops if op.primitive == compat.RULED]
    assert calls
    assert all(any(k >= 0 for k in plan.decisions.assignment[op.index] or ()) for op in calls)
    checked = verify(plan, fn, *arrays, concrete=arrays)
    assert (checked.agrees, checked.skipped) == (True, ""), str(checked)
