"""Odd sizes: the padded step is the one of other arguments, and plans offer it with its price."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from autoshard.cli.main import main
from autoshard.plan.plan import Plan
from autoshard.program.trace import trace
from autoshard.search.padding import padded, paddings
from autoshard.search.search import search
from autoshard.units import format_seconds
from tests.helpers import toy_machine
from tests.program.steps import f


def product(rows):
    def step(x, w, v):
        return jnp.tanh(x @ w) @ v

    return step, (f(rows, 64), f(64, 64), f(64, 16))


def gradient(rows):
    def loss(w, x):
        return jnp.mean(jax.nn.softmax(x @ w["up"]) @ w["down"])

    weights = {"up": f(16, 64), "down": f(64, 16)}
    return lambda w, x: jax.tree.map(jnp.subtract, w, jax.grad(loss)(w, x)), (weights, f(rows, 16))


def looped(rows):
    def step(x, w):
        def body(carry, row):
            return jnp.tanh(carry @ w) + row, carry.sum(axis=-1)

        return jax.lax.scan(body, x, jnp.ones((4, *x.shape)))

    return step, (f(rows, 32), f(32, 32))


def merged(rows):
    """The dimension is the major part of another one for a while."""

    def step(x, w):
        return jnp.tanh((x.reshape(rows * 8, 16) @ w).reshape(rows, 8, 16)).sum(axis=0)

    return step, (f(rows, 8, 16), f(16, 16))


@pytest.mark.parametrize("make", [product, gradient, looped, merged])
@pytest.mark.parametrize(("odd", "even"), [(31, 32), (60, 64)])
def test_the_padded_program_is_the_one_of_longer_arguments(make, odd, even) -> None:
    fn, args = make(odd)
    program, longer = trace(fn, *args), trace(make(even)[0], *make(even)[1])
    padding = next(one for one in paddings(program, 16) if one.size == odd)
    assert (padding.padded, padding.possible) == (even, 16)
    found = padded(program, padding)
    kept = [value.index for value in longer.values if not value.free]
    assert [found.values[k].shape for k in kept] == [longer.values[k].shape for k in kept]
    for one, other in zip(found.ops, longer.ops, strict=True):
        if not longer.values[other.outputs[0]].free:
            assert str(one.rule) == str(other.rule)
            assert one.flops == pytest.approx(other.flops, rel=1e-2), str(one)


def narrow(rows):
    """Only the rows can be cut."""
    return (lambda x, w: jnp.tanh(x @ w) @ w.T), (f(rows, 3), f(3, 3))


def test_a_plan_offers_the_padding_with_its_price() -> None:
    plan, even = (
        search(trace(fn, *args), toy_machine(), time_limit=20)
        for fn, args in (narrow(31), narrow(32))
    )
    (note,) = plan.notes
    assert note == (
        "dimensions of 31 (of x and 4 other arrays) are cut over at most 1 of the devices: padded "
        f"to 32, over 8 as a rule, the step takes {format_seconds(even.estimate.step_seconds)} in "
        f"place of {format_seconds(plan.estimate.step_seconds)}; pad them with what has no weight "
        "in the result, such as rows that the loss leaves out"
    )
    assert even.notes == ()


def test_nothing_is_offered_where_nothing_is_gained() -> None:
    fn, args = product(33)  # 40 is longer by a fifth: more than what is saved
    assert [one.padded for one in paddings(trace(fn, *args), 8)] == [40]
    assert paddings(trace(fn, *product(64)[1]), 8) == []
    assert paddings(trace(lambda x: x[1:] + x[:-1], f(31, 64)), 8) == []  # neighbours are read


def test_what_is_not_priced_is_said() -> None:
    """Neighbours of a row are read, or what is saved is searched for as well."""

    def smoothed(x, w):
        rows = jnp.tanh(x @ w)
        return rows[1:] - rows[:-1]

    plan = search(trace(smoothed, f(31, 64), f(64, 64)), toy_machine(), time_limit=10)
    (note,) = plan.notes
    assert note.startswith(
        "dimensions of 31 are cut over at most 1 of the devices, and 32 over 8: what padding them "
        "would save is not known, because slice at (top) (test_padding.py:"
    )
    again = search(trace(smoothed, f(31, 64), f(64, 64)), toy_machine(), baselines=False)
    assert again.notes == (note,)
    fn, args = narrow(31)
    plan = search(trace(fn, *args), toy_machine(), time_limit=10, remat="search")
    assert plan.notes[-1] == (
        "dimensions of 31 (of x and 4 other arrays) are cut over at most 1 of the devices, and 32 "
        "over 8: a search without --remat and --accumulate tells what padding them saves"
    )


STEPS = """
import jax
import jax.numpy as jnp

def odd():
    array = jax.ShapeDtypeStruct
    args = array((4095, 512), jnp.bfloat16), array((512, 2048), jnp.bfloat16)
    return (lambda x, w: jnp.tanh(x @ w) @ w.T), args
"""


@pytest.mark.parametrize("priced", [True, False])
def test_explain_and_the_report_name_it(priced, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steps.py").write_text(STEPS)
    words = "search steps.py:odd --machine v5e-8 --mesh x=8 --quiet -o p.json"
    assert main([*words.split(), *([] if priced else ["--no-baselines"])]) == 0
    (note,) = Plan.load("p.json").notes
    assert " ".join(note.split()[:3]) == "dimensions of 4,095"
    assert ("padded to 4,096" in note) == priced
    assert ("and 4,096 over 8: a search without --no-baselines tells" in note) != priced
    assert "dimensions of 4,095" in " ".join(capsys.readouterr().out.split())
    assert main(["explain", "p.json", "x", "--program", "steps.py:odd", "--time-limit", "5"]) == 0
    assert capsys.readouterr().out.endswith(f"\n\nNote: {note}.\n")
    assert main(["report", "p.json", "steps.py:odd", "-o", "p.html"]) == 0
    assert "dimensions of 4,095" in Path("p.html").read_text()
